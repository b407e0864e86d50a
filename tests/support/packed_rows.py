"""What rows of ``pack`` have in them: documents, padding, boundaries."""

from __future__ import annotations

from typing import Any

import torch


def documents_of(row: dict[str, Any]) -> list[list[int]]:
    """Return the documents of a row, or parts of them, after checks that all its tensors say the same."""
    tokens, numbers, positions = (row[name].tolist() for name in ("input_ids", "document_ids", "position_ids"))
    assert all(tensor.dtype == torch.int64 for name, tensor in row.items() if name != "cu_seqlens")
    assert len(tokens) == len(numbers) == len(positions)
    parts: list[list[int]] = []
    lengths: list[int] = []
    for index, (token, number, position) in enumerate(zip(tokens, numbers, positions, strict=True)):
        if index == 0 or number != numbers[index - 1]:
            lengths.append(0)
            if number >= 0:
                assert number == len(parts)
                parts.append([])
        if number >= 0:
            parts[-1].append(token)
        assert position == lengths[-1]
        lengths[-1] += 1
    if "cu_seqlens" in row:
        assert row["cu_seqlens"].dtype == torch.int32
        assert row["cu_seqlens"].diff().tolist() == lengths
        assert row["cu_seqlens"][0] == 0
    return parts
