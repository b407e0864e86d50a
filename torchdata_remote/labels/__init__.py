"""Labels: map the path of a file to its class.

A *labeller* is a function ``path -> int | str``. The path is relative to the source: ``train/cat/1.jpg``, or, for a
file of a nested archive, ``n02119789/n02119789_17.JPEG`` with the inner archive's name as a folder. An ``int`` is a
class number, counted from 0. A ``str`` is the name of a class; the names are sorted and numbered from 0. A labeller may
have an attribute ``table``, a mapping ``key -> {"id": int, "name": str}`` of all its classes, with ids counted from 0.
Any function can be a labeller; with several processes it must be picklable.

============================================= ======================================================================
labeller                                      label
============================================= ======================================================================
:func:`parent_directory`                      the parent directory
:func:`from_pattern`                          the group of a regular expression
:func:`classes_json`                          the class whose key is a prefix of the file name or a folder
:func:`meta_mat`                              the same, for the classes of an ILSVRC development kit
:func:`by_number`                             the class in a JSON object image number -> class
:func:`ground_truth`                          the class in a text file with one line per image
============================================= ======================================================================
"""

from ..formats.manifest import CLASSES_NAME
from ._assign import assign_labels, merged_tables
from ._class_numbers import Classes, class_numbers
from ._classes import classes_json, meta_mat
from ._numbered import by_number, ground_truth
from ._paths import Labeller, NumberedClasses, from_pattern, labeller_of, parent_directory
from ._table import ClassEntry, dump_table, load_table

__all__ = [
    "CLASSES_NAME",
    "ClassEntry",
    "Classes",
    "Labeller",
    "NumberedClasses",
    "assign_labels",
    "by_number",
    "class_numbers",
    "classes_json",
    "dump_table",
    "from_pattern",
    "ground_truth",
    "labeller_of",
    "load_table",
    "merged_tables",
    "meta_mat",
    "parent_directory",
]
