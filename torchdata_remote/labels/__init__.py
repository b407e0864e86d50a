"""Labels: from a file's path to its class.

A *labeller* is a function ``path -> int | str``. The path is the one below the source: ``train/cat/1.jpg``, or, for a
file of an archive within an archive, ``n02119789/n02119789_17.JPEG`` with the inner archive's name as a folder. An
``int`` is a class number, counted from 0. A ``str`` is a class's name; numbers then follow from all names, sorted. A
labeller may have an attribute ``table``, a mapping ``key -> {"id": int, "name": str}`` of its classes, with ids counted
from 0; then it is complete. Any function of yours is one; it has to pickle where several processes label.

============================================= ======================================================================
labeller                                      label
============================================= ======================================================================
:func:`parent_directory`                      the folder that the file lies in
:func:`from_pattern`                          what a regular expression finds in the path
:func:`classes_json`                          the class whose key begins the file's name or names one of its folders
:func:`meta_mat`                              the same, from the classes of an ILSVRC development kit
:func:`by_number`                             from a JSON object image number -> class
:func:`ground_truth`                          from a text file with one class a line
============================================= ======================================================================
"""

from ..formats.manifest import CLASSES_NAME
from ._assign import assign_labels, merged_tables
from ._classes import classes_json, meta_mat
from ._numbered import by_number, ground_truth
from ._paths import Classes, Labeller, NumberedClasses, class_numbers, from_pattern, labeller_of, parent_directory
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
