"""Make the responses for errors, which show nothing of the service's disk."""

from __future__ import annotations

import logging

from ..problems import problem_of
from .json_response import JSONResponse
from .private_paths import without_root

_log = logging.getLogger("torchdata_remote")


def error_response(error: Exception, request: str, root_url: str) -> JSONResponse:
    """Make the response for an error. A defect of this program is logged, and what a message may not show.

    Args:
        error: that a request ended with.
        request: its method and path, for the log.
        root_url: of the datasets, which messages do not show.
    """
    problem = problem_of(error)
    if problem is None:
        _log.error("%s failed", request, exc_info=error)
        return JSONResponse({"error": "Internal error of the service. See its log."}, 500)
    shown = without_root(problem.message, root_url)
    if shown != problem.message:
        level = logging.WARNING if problem.status >= 500 else logging.INFO
        _log.log(level, "%s: %d: %s", request, problem.status, problem.message)
    return JSONResponse({"error": shown}, problem.status, problem.headers)
