"""What stands in a file arrives as it stands there, from that file and no other, or an error names the line."""

import gzip
import json

import pandas as pd
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, Features, Sequence, Value
from helpers.recipes import load, write
from pyarrow import parquet

from plainformer.recipes import columns, json_files
from plainformer.recipes.errors import DataError


def as_lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


JSON_FORMS = {
    "lines": ("a.jsonl", as_lines),
    "array": ("a.json", json.dumps),
    "indented": ("a.json", lambda rows: json.dumps(rows, indent=1)),
    "data": ("a.json", lambda rows: json.dumps({"version": 1.5, "data": rows, "more": [1]})),
}
JSON_FORM = pytest.mark.parametrize("name, form", JSON_FORMS.values(), ids=JSON_FORMS)


def read(tmp_path, name: str, content: str | bytes, **arguments) -> list[dict]:
    return load(tmp_path, train_file=write(tmp_path / name, content), **arguments)[1]["train"].to_list()


# The file that was named


def write_text(path, text: str) -> None:
    """One row with this text."""
    contents = {".csv": f"text\n{text}\n", ".tsv": f"text\n{text}\n", ".txt": text, ".conll": f"{text}\n"}
    contents |= {".jsonl": as_lines([{"text": text}]), ".json": json.dumps([{"text": text}])}
    if path.suffix == ".parquet":
        with open(path, "wb") as file:
            parquet.write_table(pa.table({"text": [text]}), file)
    else:
        write(path, contents[path.suffix])


@pytest.mark.parametrize("extension", ["csv", "tsv", "json", "jsonl", "parquet", "txt", "conll"])
def test_no_path_is_a_pattern(tmp_path, extension):
    folder = tmp_path / "d[1]::x"
    folder.mkdir()
    for name in ("train[12]", "train?", "*", "a::b"):
        for other in ("train1", "train2", "a"):
            write_text(folder / f"{other}.{extension}", "another")
        write_text(folder / f"{name}.{extension}", "right")
        for split in ("train_file", "test_file"):
            _, data = load(tmp_path, **{split: folder / f"{name}.{extension}"})
            (row,) = data[split.partition("_")[0]].to_list()
            assert row == ({"tokens": ["right"]} if extension == "conll" else {"text": "right"}), name


def test_a_folder_of_data_is_no_pattern(tmp_path):
    (tmp_path / "d[1]").mkdir()
    with pytest.raises(DataError, match=r"d\[1\] is a folder with one of \[ \] \* \? :: in its path: rename it"):
        load(tmp_path, dataset_name=tmp_path / "d[1]")


# JSON


VALUES = {
    "null-first": (None, "x", ["a", "b"]),
    "missing-first": (..., 7, [7, 8]),
    "texts-that-look-otherwise": ("2024-01-01", "1", ["2024-01-01T10:00:00Z", "true", "NA"]),
    "fractions-after-integers": (1, 0.5, [1.0, 0.5]),
    "empty-lists": ([], ["x"], [["x"], []]),
    "nested-lists": ([[]], [[1], [0.5]], [[[1.0], [0.5]]]),
    "answers": (
        {"text": [], "answer_start": []},
        {"text": ["a"], "answer_start": [3]},
        [{"text": ["b"], "answer_start": [0]}],
    ),
    "long": ("x", "y" * 11_000_000, ["z"]),
    "large": (2**63 - 1, -(2**63), [2**53 + 1]),
}


@pytest.mark.parametrize("name, form", [JSON_FORMS["lines"], JSON_FORMS["array"]], ids=["lines", "array"])
@pytest.mark.parametrize("first, second, more", VALUES.values(), ids=VALUES)
def test_rows_are_the_same_in_any_order(tmp_path, name, form, first, second, more):
    """Also where the first thousand, which a library may take the types from, are all alike."""
    count = 1 if second == "y" * 11_000_000 else 1010
    values = [first] * count + [second, *more]
    rows = [{"text": "a"} if value is ... else {"text": "a", "value": value} for value in values]
    expected = [None if value is ... else value for value in values]
    for order in (1, -1):
        found = read(tmp_path, name, form(rows[::order]))
        assert [row["value"] for row in found] == expected[::order]


@JSON_FORM
def test_columns_are_those_of_all_rows(tmp_path, name, form):
    rows = [{"a": 1}, {"b": [{"x": 1}, {"y": "s"}]}, {"a": None, "c": True}]
    found = read(tmp_path, name, form(rows))
    assert found == [
        {"a": 1, "b": None, "c": None},
        {"a": None, "b": [{"x": 1, "y": None}, {"x": None, "y": "s"}], "c": None},
        {"a": None, "b": None, "c": True},
    ]
    assert type(found[0]["a"]) is int and type(found[2]["c"]) is bool
    path = write(tmp_path / name, form([{"text": "a", "label": "x"}, {"text": "b"}, {"text": "c", "label": "y"}]))
    args, data = load(tmp_path, train_file=path)
    with pytest.raises(DataError, match=r"1 row of .*: 'label' is empty.* Here: .* (line|record) 2"):
        columns.label_names(data, args, "label")


def test_json_is_read_block_by_block(tmp_path, monkeypatch):
    """Wherever a block ends: in a number, a text, an escape, a character, or between two values."""
    rows = [{"a": -1.5e-3, "b": 'x"\\\n\u00fc\U0001f600'}, {"c": [True, None, []], "": {}}, {}, {"d": "]" * 50}]
    texts = [json.dumps(rows), json.dumps(rows, indent=2), json.dumps(rows, ensure_ascii=False)]
    texts += [json.dumps({"version": 12345.25, "x": rows, "data": rows, "y": 1e5}, ensure_ascii=False), "\ufeff[ ]"]
    bad = write(tmp_path / "bad.json", '[\n{"a": 1},\n{"b": 1,, "c": "' + "x" * 100 + '"}]')
    for block in range(1, 40):
        monkeypatch.setattr(json_files, "BLOCK", block)
        for number, text in enumerate(texts):
            path = write(tmp_path / f"{number}.json", text + "\n")
            found = list(json_files.read_json(str(path)))
            assert [row for _, row in found] == ([] if "[ ]" in text else rows), block
        with pytest.raises(DataError, match="bad.json, line 3, column 9: not JSON"):
            list(json_files.read_json(str(bad)))
    assert [place for place, _ in json_files.read_json(str(tmp_path / "0.json"))][-1] == "record 4"


MIXED = {
    "text-number": ([1, "x"], "'a' is 'x', of type str, but on {} 1 it is of type int. Give it one type throughout."),
    "number-bool": ([2.5, True], "'a' is True, of type bool, but on {} 1 it is of type float."),
    "in-lists": ([[1], ["x"]], "'a[]' is 'x', of type str, but on {} 1 it is of type int."),
    "in-objects": ([{"b": 1}, {"b": []}], "'a.b' is [], of type list, but on {} 1 it is of type int."),
    "large": ([1, 2**63], "'a' is 9223372036854775808, more than 64 bits. Write it as text, in quotes."),
    "nan": ([1, float("nan")], "'a' is nan, which JSON does not have. Write null for what is missing."),
    "surrogate": (["x", "\ud800"], "'a' has \\ud800, which is half of a character."),
}


@JSON_FORM
@pytest.mark.parametrize("values, message", MIXED.values(), ids=MIXED)
def test_values_that_fit_into_no_column(tmp_path, name, form, values, message):
    place = "line" if name == "a.jsonl" else "record"
    with pytest.raises(DataError) as error:
        read(tmp_path, name, form([{"a": value} for value in values]))
    assert f"{name}, {place} 2: {message.format(place)}" in str(error.value)


def test_keys_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(json_files, "MOST_FIELDS", 3)
    with pytest.raises(DataError, match="a.jsonl, line 2: the objects of 'm' have more than 3 different keys"):
        read(tmp_path, "a.jsonl", as_lines([{"m": {"a": 1, "b": 1}}, {"m": {"c": 1, "d": 1}}]))


DEEP = "[" * 100_000
BROKEN = {
    "trailing-comma": ('[{"a": 1},\n]', "line 2, column 1: not JSON (Expecting value)"),
    "cut-off": ('[{"a": 1},\n{"a": 2}', "line 2, column 9: not JSON ('the end' instead of ',' or ']')"),
    "no-comma": ('[{"a": 1}\n{"a": 2}]', "line 2, column 1: not JSON ('{' instead of ',' or ']')"),
    "cut-text": ('[{"a": "x', "line 1, column 8: not JSON (Unterminated string"),
    "two-arrays": ('[{"a": 1}]\n[{"a": 2}]', "line 2, column 1: more follows behind the array. Put all objects into"),
    "object-and-more": ('{"data": [{"a": 1}]}\n{}', "line 2, column 1: more follows behind the object."),
    "bad-data": ('{"data": [{"a": 1}], "b" 1}', "line 1, column 26: not JSON ('1' instead of ':')"),
    "indented-object": (
        '{\n"a": 1\n}',
        "line 1, column 2: not JSON (Expecting property name enclosed in double quotes)",
    ),
    "one-value": ('"a"', "line 1: 'a' is no JSON object: write {...}."),
    "no-object": ("[\n17]", "record 1: '17' is no JSON object: write {...}."),
    "empty-array": ("[]", "holds no rows"),
    "empty-objects": ("[{}, {}]", "all objects are empty. Give each row its values."),
    "twice": ('[{"a": 1},\n{"a": 1, "a": 2}]', "line 2, column 1: in the value that begins here, the key 'a' is there"),
    "twice-in-line": ('{"a": 1}\n{"a": 1, "a": 2}', "line 2: the key 'a' is there twice. Correct the line."),
    "deep": (f'[\n{{"a": {DEEP}}}]', "line 2, column 1: in the value that begins here, it is nested too deeply."),
    "deep-line": (f'{{"a": {DEEP}}}', "line 1: it is nested too deeply. Write it flat."),
    "digits": ("[\n" + '{"a": ' + "9" * 5000 + "}]", "line 2, column 1: in the value that begins here, a number has"),
    "digits-line": ('{"a": ' + "9" * 5000 + "}", "line 1: a number has too many digits. Correct the line."),
    "infinite": ('{"a": 1e999}', "line 1: 'a' is inf, which JSON does not have."),
    "encoding": ('[\n{"a": "ü"}]'.encode("latin-1"), "line 2: b'\\xfc' is not UTF-8. Save the file as UTF-8."),
    "utf-16": ('[{"a": 1}]'.encode("utf-16"), "line 1: this is UTF-16 or no text at all. Save the file as UTF-8."),
    "utf-16-le": ('[{"a": 1}]'.encode("utf-16-le"), "line 1: this is UTF-16 or no text at all."),
    "compressed": (gzip.compress(b"[]"), "is compressed, or a spreadsheet: give what is in it"),
    "squad": (
        '{"data": [{"paragraphs": 3}]}',
        "record 1, question None: not SQuAD's form ('int' object is not iterable",
    ),
}


@pytest.mark.parametrize("content, message", BROKEN.values(), ids=BROKEN)
def test_an_error_in_json_names_file_and_place(tmp_path, content, message):
    with pytest.raises(DataError) as error:
        read(tmp_path, "a.json", content)
    assert message in str(error.value) and "a.json" in str(error.value)


# CSV and TSV


def test_a_lone_quote_swallows_no_lines(tmp_path, capsys):
    """Forty lines are forty rows or an error with the line; text that spans lines as it should is none."""
    quotes = {5: '"', 20: '"'}
    text = "text\tlabel\n" + "".join(f"{quotes.get(number, '')}text {number}\tx\n" for number in range(40))
    with pytest.raises(DataError, match=r"a.tsv, line 7: '\t' expected after '\"'.*--quoting literal"):
        read(tmp_path, "a.tsv", text)
    closed = text.replace("text 9", 'text 9"')
    with pytest.raises(DataError, match="a.tsv, line 7: a field .* next one is on line 11. Give --quoting literal if"):
        read(tmp_path, "a.tsv", closed)
    for name, content, fields in (("a.tsv", text, {}), ("a.csv", text.replace("\t", ","), {"delimiter": ","})):
        rows = read(tmp_path, name, content, quoting="literal", **fields)
        assert (len(rows), rows[5]["text"]) == (40, '"text 5')
    assert len(read(tmp_path, "b.tsv", closed.replace('"text 20', "text 20"), quoting="double")) == 36
    assert "b.tsv: 1 row with line breaks in quotes, the longest from line 7 to line 11" in capsys.readouterr().out


def test_rows_in_quotes_are_found(tmp_path, capsys):
    """In CSV quotes may hold line breaks, but not rows: lines of as many cells whose labels are those of other rows."""
    good = 'text,label\ngood,pos\n"Hello,\nthanks",pos\n"one,\ntwo, three\nfour",neg\n'
    assert [row["text"] for row in read(tmp_path, "a.csv", good)][1:] == ["Hello,\nthanks", "one,\ntwo, three\nfour"]
    assert "a.csv: 2 rows with line breaks in quotes, the longest from line 5 to line 7" in capsys.readouterr().out
    swallowed = 'text,label\n"what a film,pos\ndull,neg\nI loved it",pos\ngood,pos\nbad,neg\n'
    with pytest.raises(DataError, match="a.csv, line 2: the quotes that begin here hold 3 lines which look like rows"):
        read(tmp_path, "a.csv", swallowed)
    assert len(read(tmp_path, "a.csv", swallowed, quoting="double")) == 3
    rows = read(tmp_path, "a.csv", swallowed, quoting="literal")
    assert [row["text"] for row in rows] == ['"what a film', "dull", 'I loved it"', "good", "bad"]


def test_what_pandas_writes_is_read(tmp_path, capsys):
    table = pd.DataFrame({"text": ['a "q" b', "two\nlines", "a\tb, c; d"], "label": ["x", "y", "NA"]})
    rows = table.to_dict("records")
    assert read(tmp_path, "a.csv", table.to_csv()) == rows
    assert "a.csv: left out, since the header gives no name to it: column 1 of 3" in capsys.readouterr().out
    assert read(tmp_path, "a.tsv", table.to_csv(sep="\t", index=False), quoting="double") == rows
    for separator, flag in ((";", ";"), ("\t", "tab"), ("\t", "\\t"), ("|", "|")):
        given = {"delimiter": flag, "quoting": "double"}
        assert read(tmp_path, "a.csv", table.to_csv(sep=separator, index=False), **given) == rows
    assert read(tmp_path, "b.csv", "text,,label,\na,b,c,d\n") == [{"text": "a", "label": "c"}]
    assert "column 2, 4 of 4" in capsys.readouterr().out


CSV_ERRORS = {
    "semicolons": ("a.csv", ";text;label\n", "seems to have ';' between its names, not ','. Give --delimiter ';'; or"),
    "tabs": ("a.csv", "text\tlabel\n", "Give --delimiter tab; or --delimiter ',', if the names are right so."),
    "commas": ("a.tsv", "text,label\n", "a.tsv, line 1: the header 'text,label' seems to have ',' between its names"),
    "quoted": (
        "a.csv",
        '"text";"label"\n"a";"b"\n',
        "seems to have ';' between its names, not ','. Give --delimiter ';'",
    ),
    "quoted-tabs": ("a.csv", '"text"\t"label"\n', "Give --delimiter tab; or --delimiter ',', if the names are right"),
    "returns": ("a.csv", "text,label\ra,b\r", "a.csv, line 1: a carriage return is in the first line. If the lines"),
    "returns-conll": ("a.conll", "a\tO\rb\tO\r", "a.conll, line 1: a carriage return is in the first line. If the"),
    "returns-text": ("a.txt", "one\rtwo\r", "a.txt, line 1: a carriage return is in the first line. If the lines of"),
    "row-names": ("a.csv", "text,label\n1,a,b\n", "If each row begins with its number, the header must begin with a"),
    "no-names": ("a.csv", ",,\n1,2,3\n", "line 1: the header '', '', '' must name every column"),
    "return": ("a.csv", "text,label\na\rb,c\n", "line 2: a carriage return is in a field without quotes. Put a field"),
    "utf-16": ("a.csv", "text,label\n".encode("utf-16-le"), "line 1: this is UTF-16 or no text at all."),
    "zip": ("a.csv", b"PK\x03\x04", "a.csv is compressed, or a spreadsheet"),
}


@pytest.mark.parametrize("name, content, message", CSV_ERRORS.values(), ids=CSV_ERRORS)
def test_an_error_in_csv_names_the_remedy(tmp_path, name, content, message):
    with pytest.raises(DataError) as error:
        read(tmp_path, name, content)
    assert message in str(error.value)


def test_flags_of_csv(tmp_path):
    assert read(tmp_path, "a.csv", "text;raw\na\n", delimiter=",") == [{"text;raw": "a"}]
    with pytest.raises(DataError, match="a.csv, line 1: a carriage return is in the first line"):
        read(tmp_path, "a.csv", "text,label\ra,b\r", quoting="literal")
    for fields, message in (
        ({"delimiter": "::"}, "--delimiter ::: give one character"),
        ({"quoting": "all"}, "--quoting all is not known: choose one of double, literal"),
        ({"quoting": "double", "file_format": "json"}, "--delimiter and --quoting are for CSV and TSV"),
    ):
        with pytest.raises(DataError, match=message):
            read(tmp_path, "a.csv", "text\na\n", **fields)


# Parquet


def test_parquet(tmp_path):
    """Categories, which pandas writes, come as what they stand for; -1, unlabelled, within lists as None."""
    table = pd.DataFrame({"text": ["a", "b"], "label": pd.Categorical(["x", None]), "values": [[], [1.5]]})
    table.to_parquet(tmp_path / "a.parquet")
    args, data = load(tmp_path, train_file=tmp_path / "a.parquet")
    assert data["train"].to_list() == [
        {"text": "a", "label": "x", "values": []},
        {"text": "b", "label": None, "values": [1.5]},
    ]
    assert columns.where(args, "train", 1).endswith("a.parquet, row 2")
    features = Features({"tags": Sequence(ClassLabel(names=["no", "yes"])), "text": Value("string")})
    rows = {"tags": [[1, 0], [-1]], "text": ["a", "b"]}
    Dataset.from_dict(rows, features).to_parquet(tmp_path / "b.parquet")
    assert [row["tags"] for row in load(tmp_path, train_file=tmp_path / "b.parquet")[1]["train"]] == [
        ["yes", "no"],
        [None],
    ]


def test_parquet_columns_that_no_recipe_reads_are_left_out(tmp_path, capsys):
    pairs = pa.map_(pa.string(), pa.int64())
    table = {
        "text": ["a"],
        "more.a": [1],
        "large": pa.array([2**64 - 1], pa.uint64()),
        "map": pa.array([[("a", 1)]], pairs),
    }
    table |= {"more": pa.array([[[("a", 1)]]], pa.list_(pairs)), "id": pa.array([2**63 - 1], pa.uint64())}
    parquet.write_table(pa.table(table), tmp_path / "a.parquet")
    rows = load(tmp_path, train_file=tmp_path / "a.parquet")[1]["train"].to_list()
    assert rows == [{"text": "a", "more.a": 1, "id": 2**63 - 1}]
    out = capsys.readouterr().out
    assert "a.parquet: left out column 'large', which holds numbers of 2^63 and more: write texts" in out
    assert "left out column 'map', which holds map<string, int64" in out and "left out column 'more', which" in out
    parquet.write_table(pa.table({"map": table["map"]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match="b.parquet has no column of texts, numbers or lists"):
        load(tmp_path, train_file=tmp_path / "b.parquet")


def test_parquet_that_cannot_be_read(tmp_path):
    parquet.write_table(pa.table({"text": ["a" * 50] * 50}), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    for broken in (content[:-20], content[:4] + bytes(40) + content[44:]):
        with pytest.raises(DataError, match="b.parquet is not a readable Parquet file: .*[^.]. Write it again."):
            read(tmp_path, "b.parquet", broken)
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    parquet.write_table(twice, tmp_path / "c.parquet")
    with pytest.raises(DataError, match="c.parquet has two columns 'text'. Name each column once."):
        load(tmp_path, train_file=tmp_path / "c.parquet")
    parquet.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match="d.parquet holds no rows"):
        load(tmp_path, train_file=tmp_path / "d.parquet")
