"""Mistakes with labellers."""

from __future__ import annotations

from torchdata_remote.errors import LabelError, ObjectNotFoundError

from .mistake import Mistake

TABLE = {
    "labels.parent_directory": [
        Mistake(
            "a path",
            'tdr.labels.parent_directory("train/cat/1.jpg")',
            TypeError,
            "parent_directory() takes no argument by position, got 1; not expected: a str.",
        ),
        Mistake(
            "a file without a folder",
            'tdr.labels.parent_directory()("1.jpg")',
            LabelError,
            (
                "'1.jpg' has no parent directory to take a label from. If the label is elsewhere in the path, "
                "use labels.from_pattern(regex), or pattern= of label_from_path."
            ),
        ),
    ],
    "labels.from_pattern": [
        Mistake(
            "no expression",
            "tdr.labels.from_pattern()",
            TypeError,
            "from_pattern() is missing 'regex' (searched in the path). Write from_pattern(regex).",
        ),
        Mistake(
            "no group",
            'tdr.labels.from_pattern("cat")',
            ValueError,
            (
                "from_pattern: pattern must be a regular expression such as '^([^/]+)/', with exactly one "
                "group, the class; 'cat' has 0."
            ),
        ),
        Mistake(
            "two groups",
            'tdr.labels.from_pattern("(c)(a)t")',
            ValueError,
            (
                "from_pattern: pattern must be a regular expression such as '^([^/]+)/', with exactly one "
                "group, the class; '(c)(a)t' has 2."
            ),
        ),
        Mistake(
            "a glob",
            'tdr.labels.from_pattern("*/cat/*")',
            ValueError,
            (
                "from_pattern: pattern must be a regular expression such as '^([^/]+)/', got '*/cat/*': "
                "nothing to repeat at position 0. It looks like a glob."
            ),
        ),
        Mistake(
            "an open group",
            'tdr.labels.from_pattern("(cat")',
            ValueError,
            (
                "from_pattern: pattern must be a regular expression such as '^([^/]+)/', got '(cat': missing "
                "), unterminated subpattern at position 0."
            ),
        ),
        Mistake(
            "None",
            "tdr.labels.from_pattern(None)",
            TypeError,
            "from_pattern: pattern must be a regular expression such as '^([^/]+)/', got None.",
        ),
        Mistake(
            "bytes",
            'tdr.labels.from_pattern(b"(cat)")',
            TypeError,
            (
                "from_pattern: pattern must be a regular expression such as '^([^/]+)/', because paths are "
                "str; got a pattern of bytes."
            ),
        ),
        Mistake(
            "misspelt option",
            'tdr.labels.from_pattern(pattern="(cat)")',
            TypeError,
            "from_pattern() got an unexpected keyword argument 'pattern'; did you mean 'regex'?",
        ),
        Mistake(
            "a path without a match",
            'tdr.labels.from_pattern("(cat)")("train/dog/1.jpg")',
            LabelError,
            "'(cat)' finds no label in 'train/dog/1.jpg'.",
        ),
    ],
    "labels.classes_json": [
        Mistake(
            "no source",
            "tdr.labels.classes_json()",
            TypeError,
            ("classes_json() is missing 'source' (a URL, a path, or the object itself). Write classes_json(source)."),
        ),
        Mistake(
            "classes without id_base",
            'tdr.labels.classes_json({"n01": {"id": 1, "name": "fox"}})',
            TypeError,
            "classes_json: id_base must be an int, got None.",
        ),
        Mistake(
            "id_base as str",
            'tdr.labels.classes_json({"n01": {"id": 1, "name": "fox"}}, id_base="1")',
            TypeError,
            "classes_json: id_base must be an int, got '1' (str). Write 1.",
        ),
        Mistake(
            "id_base=True",
            'tdr.labels.classes_json({"n01": {"id": 1, "name": "fox"}}, id_base=True)',
            TypeError,
            "classes_json: id_base must be an int, got True (bool).",
        ),
        Mistake(
            "a list of names",
            'tdr.labels.classes_json(["cat", "dog"], id_base=0)',
            LabelError,
            (
                'the list given to classes_json: expected classes as {"key": {"id": 0, "name": "cat"}, ...}, '
                "got a list: ['cat', 'dog']"
            ),
        ),
        Mistake(
            "a file that does not exist",
            'tdr.labels.classes_json("/nonexistent/classes.json", id_base=0)',
            ObjectNotFoundError,
            "file:///nonexistent/classes.json: no such file.",
        ),
        Mistake(
            "a number below id_base",
            'tdr.labels.classes_json({"n01": {"id": 0, "name": "fox"}}, id_base=1)',
            LabelError,
            (
                "the dict given to classes_json: the id of class 'n01' is 0, expected 1 to 2147483648 where "
                "numbers count from 1 (id_base). Look up what the source counts from."
            ),
        ),
        Mistake(
            "an id twice",
            ('tdr.labels.classes_json({"n01": {"id": 1, "name": "fox"}, "n02": {"id": 1, "name": "cat"}}, id_base=1)'),
            LabelError,
            "the dict given to classes_json: classes 'n01' and 'n02' have the same id, 1.",
        ),
        Mistake(
            "an entry without a name",
            'tdr.labels.classes_json({"n01": {"id": 1}}, id_base=1)',
            LabelError,
            ("the dict given to classes_json: class 'n01' is {'id': 1}, expected {\"id\": int, \"name\": str}."),
        ),
        Mistake(
            "an id as str",
            'tdr.labels.classes_json({"n01": {"id": "1", "name": "fox"}}, id_base=1)',
            LabelError,
            "the dict given to classes_json: the id of class 'n01' is '1' (str), expected an int.",
        ),
        Mistake(
            "misspelt option",
            "tdr.labels.classes_json({}, idbase=1)",
            TypeError,
            "classes_json() got an unexpected keyword argument 'idbase'; did you mean 'id_base'?",
        ),
    ],
    "labels.meta_mat": [
        Mistake(
            "a dict",
            "tdr.labels.meta_mat({})",
            LabelError,
            "the dict given to meta_mat: expected a list of synsets, got a dict.",
        ),
        Mistake(
            "no synsets",
            "tdr.labels.meta_mat([])",
            LabelError,
            "the list given to meta_mat: no synset has num_children == 0, so there are no classes.",
        ),
        Mistake(
            "no source",
            "tdr.labels.meta_mat()",
            TypeError,
            (
                "meta_mat() is missing 'source' (a URL, a path, or the structs as dicts, of which four fields "
                "are needed). Write meta_mat(source)."
            ),
        ),
        Mistake(
            "a file that is none",
            ('Path(folder / "meta.mat").write_bytes(b"text")\ntdr.labels.meta_mat(folder / "meta.mat")'),
            LabelError,
            (
                ".../meta.mat: not a MATLAB file as an ILSVRC development kit has it: 4 bytes, of which the "
                "header would take 128."
            ),
        ),
        Mistake(
            "a row without fields",
            "tdr.labels.meta_mat([{}])",
            LabelError,
            "the list given to meta_mat: synset 0 has no WNID: {}",
        ),
        Mistake(
            "a number",
            "tdr.labels.meta_mat(3)",
            LabelError,
            "the int given to meta_mat: expected a list of synsets, got a int.",
        ),
    ],
    "labels.by_number": [
        Mistake(
            "no base",
            'tdr.labels.by_number({"0": 1})',
            TypeError,
            (
                "by_number() is missing 'number_base' (the number that the keys count from). Write "
                "by_number(source, number_base=...)."
            ),
        ),
        Mistake(
            "base as str",
            'tdr.labels.by_number({"0": 1}, number_base="0")',
            TypeError,
            "by_number: number_base must be an int, got '0' (str). Write 0.",
        ),
        Mistake(
            "a list",
            "tdr.labels.by_number([1, 2], number_base=0)",
            LabelError,
            'the list given to by_number: expected {"0": 1, ...}, got a list.',
        ),
        Mistake(
            "names as keys",
            'tdr.labels.by_number({"cat": 1}, number_base=0)',
            LabelError,
            "the dict given to by_number: the key 'cat' is not a number from number_base=0 on.",
        ),
        Mistake(
            "a key below the base",
            'tdr.labels.by_number({"0": 1}, number_base=1)',
            LabelError,
            "the dict given to by_number: the key '0' is not a number from number_base=1 on.",
        ),
        Mistake(
            "a class as str",
            'tdr.labels.by_number({"0": "1"}, number_base=0)',
            LabelError,
            "the dict given to by_number: the class of number 0 is '1' (str), expected an int.",
        ),
        Mistake(
            "misspelt option",
            'tdr.labels.by_number({"0": 1}, base=0)',
            TypeError,
            "by_number() got an unexpected keyword argument 'base'; did you mean 'number_base'?",
        ),
    ],
    "labels.ground_truth": [
        Mistake(
            "no names",
            "tdr.labels.ground_truth([1, 2])",
            TypeError,
            (
                "ground_truth() is missing 'base_name' (how the images' names begin, such as "
                '"ILSVRC2012_val_"). Write ground_truth(source, base_name=...).'
            ),
        ),
        Mistake(
            "names with a folder",
            'tdr.labels.ground_truth([1, 2], base_name="val/ILSVRC_")',
            ValueError,
            "base_name is the beginning of a file's name, without folders, got 'val/ILSVRC_'",
        ),
        Mistake(
            "names as bytes",
            'tdr.labels.ground_truth([1, 2], base_name=b"val")',
            ValueError,
            "base_name is the beginning of a file's name, without folders, got b'val'",
        ),
        Mistake(
            "classes as str",
            'tdr.labels.ground_truth(["cat"], base_name="val")',
            LabelError,
            "the list given to ground_truth: line 1 is 'cat' (str), expected an int.",
        ),
        Mistake(
            "a dict",
            'tdr.labels.ground_truth({1: 2}, base_name="val")',
            LabelError,
            "the dict given to ground_truth: expected the class numbers as a list.",
        ),
        Mistake(
            "a class below id_base",
            'tdr.labels.ground_truth([0], base_name="val")',
            LabelError,
            (
                "the list given to ground_truth: line 1 is 0, expected 1 to 2147483648 where numbers count "
                "from 1 (id_base). Look up what the source counts from."
            ),
        ),
        Mistake(
            "misspelt option",
            'tdr.labels.ground_truth([1], basename="val")',
            TypeError,
            ("ground_truth() got an unexpected keyword argument 'basename'; did you mean 'base_name'?"),
        ),
    ],
    "labels.assign_labels": [
        Mistake(
            "one path",
            'tdr.labels.assign_labels(tdr.labels.parent_directory(), "cat/1.jpg")',
            TypeError,
            "paths must be a list of paths, got a single str: 'cat/1.jpg'",
        ),
        Mistake(
            "a list as labeller",
            'tdr.labels.assign_labels(["cat"], ["cat/1.jpg"])',
            LabelError,
            ("'cat/1.jpg' has no label: the labeller raised TypeError(\"'list' object is not callable\")."),
        ),
        Mistake(
            "names and numbers",
            'tdr.labels.assign_labels(lambda path: path if "a" in path else 1, ["a", "b"])',
            LabelError,
            ("'b' has the label 1 (int), but 'a' has a name: a labeller must return one or the other for all files."),
        ),
        Mistake(
            "None as label",
            'tdr.labels.assign_labels(lambda path: None, ["a"])',
            LabelError,
            (
                "'a' has the label None (NoneType), expected the name of a class, which is not empty, or its "
                "number from 0 to 2147483647."
            ),
        ),
        Mistake(
            "a negative label",
            'tdr.labels.assign_labels(lambda path: -1, ["a"])',
            LabelError,
            (
                "'a' has the label -1 (int), expected the name of a class, which is not empty, or its number "
                "from 0 to 2147483647."
            ),
        ),
        Mistake(
            "a float as label",
            'tdr.labels.assign_labels(lambda path: 1.0, ["a"])',
            LabelError,
            (
                "'a' has the label 1.0 (float), expected the name of a class, which is not empty, or its "
                "number from 0 to 2147483647."
            ),
        ),
    ],
}
