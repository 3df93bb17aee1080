"""Tables as people have them, each with what pandas is told to read it by."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

ROWS = np.array(
    [
        [1.5, 2.25, -3.125],
        [4.75, 0.5, 12.5],
        [-2.25, 1234.5, 0.75],
        [3.0, 8.5, 9.25],
        [0.25, -7.5, 2.5],
        [11.5, 6.25, 1.75],
    ]
)
WHOLE = np.array([[5, 6, 7, 1], [4, 4, 2, 9], [3, 1, 1, 8], [9, 2, 5, 5], [1, 7, 3, 2]])


class Form(NamedTuple):
    """A file.  name : of it.  data : bytes.  pandas : how pandas.read_csv reads the same table.

    refused : whether streampca asks for an option; its message names it.  doubt : whether the
    first line may be names or data.  known : a refusal without a line to type.
    """

    name: str
    data: bytes
    pandas: Mapping[str, Any] = MappingProxyType({})
    refused: bool = False
    doubt: bool = False
    known: str = ""


def lines(
    head: Sequence[str] | str | None = ("a", "b", "c"),
    rows: Any = ROWS,
    mark: str = ",",
    end: str = "\n",
    cell: Callable[[Any], str] = str,
) -> str:
    """The text of a table."""
    first = [] if head is None else [head if isinstance(head, str) else mark.join(head)]
    body = [mark.join(map(cell, row)) for row in np.asarray(rows).tolist()]
    return end.join([*first, *body]) + end


def with_cell(value: str, mark: str = ",") -> bytes:
    """The table with a word in place of two numbers of its second column."""
    return lines(mark=mark).replace("8.5", value).replace("-7.5", value).encode()


def german(number: float) -> str:
    return f"{number:,}".replace(",", "_").replace(".", ",").replace("_", ".")


def named_rows(mark: str, quote: str = "", corner: str | None = None, end: str = "\n") -> str:
    head = mark.join(f"{quote}{name}{quote}" for name in "abc")
    head = head if corner is None else f"{corner}{mark}{head}"
    body = (mark.join([f"{quote}s{i}{quote}", *map(str, row)]) for i, row in enumerate(ROWS))
    return end.join([head, *body]) + end


PLAIN = lines()
NUMBERED = [f"{400 + 2.5 * i}" for i in range(3)]
YEARS = [str(year) for year in range(2001, 2005)]
TEXTS = "name,a,b\n" + "".join(f'"{n}",{i}.5,{i * i}\n' for i, n in enumerate("pqrst"))
STRIPPED = {"sep": ";", "decimal": ","}

FORMS = [
    # delimiters, line ends, packing, encodings
    Form("plain.csv", PLAIN.encode()),
    Form("tabs.tsv", lines(mark="\t").encode(), {"sep": "\t"}),
    Form("tabs.csv", lines(mark="\t").encode(), {"sep": "\t"}),
    Form("semicolons.csv", lines(mark=";").encode(), {"sep": ";"}),
    Form("bars.csv", lines(mark="|").encode(), {"sep": "|"}),
    Form(
        "excel-sep.csv",
        b"sep=;\r\n" + lines(mark=";", end="\r\n").encode(),
        {"sep": ";", "skiprows": 1},
    ),
    Form(
        "excel-commas.csv",
        b'\xef\xbb\xbf"sep=;"\n' + lines(mark=";").replace(".", ",").encode(),
        {**STRIPPED, "skiprows": 1},
        refused=True,
    ),
    Form(
        "excel-no-names.csv",
        b"SEP=|\n" + lines(None, mark="|").encode(),
        {"sep": "|", "header": None, "skiprows": 1},
    ),
    Form(
        "apostrophes-around.csv",
        lines(cell="'{}'".format).encode(),
        {"quotechar": "'"},
        refused=True,
    ),
    Form(
        "some-apostrophes.csv",
        PLAIN.replace("8.5", "'8.5'").encode(),
        {"quotechar": "'"},
        refused=True,
    ),
    Form("backticks.csv", lines(cell="`{}`".format).encode(), {"quotechar": "`"}, refused=True),
    Form("powers.csv", lines("1e-3,1e-2,1e-1").encode()),
    Form("two-powers.csv", lines("1e-3,1e-2", ROWS[:, :2]).encode(), doubt=True),
    Form("groups.csv", lines("1,1,2").encode(), {"header": None}, doubt=True),
    Form("ratios.csv", lines("0.001,0.01,0.1").encode(), {"header": None}, doubt=True),
    Form(
        "blank-column.csv",
        lines(("a", "b", "c", "d"), [[*row, "   "] for row in ROWS.tolist()]).encode(),
        {"na_values": "   "},
    ),
    Form("windows.csv", lines(end="\r\n").encode()),
    Form("old-mac.csv", lines(end="\r").encode()),
    Form("no-last-end.csv", PLAIN.rstrip("\n").encode()),
    Form("blank-lines.csv", b"\n\n" + PLAIN.encode().replace(b"\n", b"\n\n", 3)),
    Form("utf8-mark.csv", PLAIN.encode("utf-8-sig")),
    Form("utf8-mark-no-names.csv", lines(None).encode("utf-8-sig"), {"header": None}),
    Form("utf16.csv", PLAIN.encode("utf-16"), {"encoding": "utf-16"}),
    Form("utf16-big.csv", b"\xfe\xff" + PLAIN.encode("utf-16-be"), {"encoding": "utf-16"}),
    Form("utf32.csv", PLAIN.encode("utf-32"), {"encoding": "utf-32"}),
    Form("utf16-no-mark.csv", PLAIN.encode("utf-16-le"), {"encoding": "utf-16-le"}, True),
    Form("latin.csv", PLAIN.replace("a", "\xe4").encode("latin-1"), {"encoding": "latin-1"}, True),
    Form("gzip.csv.gz", gzip.compress(PLAIN.encode())),
    Form(
        "gzip.TSV.GZ",
        gzip.compress(lines(mark="\t").encode()),
        {"sep": "\t", "compression": "gzip"},
    ),
    Form("bzip.csv.bz2", bz2.compress(PLAIN.encode())),
    Form("xz.csv.xz", lzma.compress(PLAIN.encode())),
    Form("unpacked.csv.gz", PLAIN.encode(), {"compression": None}),
    Form("packed.csv", gzip.compress(PLAIN.encode()), {"compression": "gzip"}),
    Form("cut.csv.gz", gzip.compress(PLAIN.encode() * 9)[:-20], known=r"after line \d+ "),
    Form("zip.csv", b"PK\x03\x04" + bytes(40), known="unzip .*zip.csv"),
    Form("capitals.CSV", PLAIN.encode()),
    # the first line
    Form("default.csv", lines("0,1,2").encode()),
    Form(
        "default-index.csv",
        named_rows(",", corner="").replace("a,b,c", "0,1,2").encode(),
        {"index_col": 0},
    ),
    Form("wavelengths.csv", lines(NUMBERED, ROWS / 100).encode()),
    Form("years.tsv", lines(YEARS, WHOLE / 8, "\t").encode(), {"sep": "\t"}),
    Form("quoted-years.csv", lines([f'"{y}"' for y in YEARS], WHOLE).encode()),
    Form("years-of-counts.csv", lines(YEARS, WHOLE * 400).encode(), doubt=True),
    Form("genes.csv", lines("7157,1956,3845,12", WHOLE / 8).encode()),
    Form(
        "named-years.csv",
        named_rows(",", corner="id").replace("a,b,c", "2001,2002,2003").encode(),
        {"index_col": 0},
    ),
    Form("counts.csv", lines("0,1,2,3", WHOLE).encode(), doubt=True),
    Form("no-names.csv", lines(None).encode(), {"header": None}),
    Form("no-names-first-missing.csv", b"1.5,NA,2.5\n" + lines(None).encode(), {"header": None}),
    Form(
        "no-names-sign.csv",
        b"1.5,?,2.5\n" + lines(None).encode(),
        {"header": None, "na_values": "?"},
        True,
    ),
    Form("no-names-class.csv", b"1.5,2.5,x\n3.5,4.5,x\n1.5,0.5,y\n", {"header": None}),
    Form("repeated.csv", lines("a,b,a").encode()),
    Form("units.csv", PLAIN.replace("c\n", "c\nm,s,kg\n").encode(), known="sed 2d "),
    # R, NumPy, comments, blanks
    Form("r.csv", named_rows(",", '"', '""').encode(), {"index_col": 0}),
    Form("r-table.tsv", named_rows("\t").encode(), {"sep": "\t"}),
    Form("r-table.txt", named_rows(" ", '"').encode(), {"sep": r"\s+"}),
    Form(
        "r-csv2.csv",
        named_rows(";", '"', '""').replace(".", ",").encode(),
        {**STRIPPED, "index_col": 0},
        True,
    ),
    Form("comments.csv", b"# made by x, y and z\n#\n" + PLAIN.encode(), {"comment": "#"}),
    Form("savetxt.csv", b"# a,b,c\n" + lines(None).encode(), {"comment": "#", "header": None}),
    Form("last-comment.csv", PLAIN.encode() + b"# the end\n", {"comment": "#"}, True),
    Form("blanks.csv", lines("   a    b  c", ROWS, "   ").encode(), {"sep": r"\s+"}),
    Form(
        "aligned.csv",
        "".join(f"{a:10.3f}{b:10.3f}{c:10.3f}\n" for a, b, c in ROWS).encode(),
        {"sep": r"\s+", "header": None},
    ),
    Form("after-commas.csv", lines(mark=", ").encode()),
    Form("last-commas.csv", "".join(f"{x},\n" for x in PLAIN.split()).encode()),
    # quotes
    Form("quoted.csv", "".join(f'"{x}"\n' for x in PLAIN.replace(",", '","').split()).encode()),
    Form("texts-of-lines.csv", TEXTS.replace("p", "p\np\n").replace("r", "r\rr").encode()),
    Form("names-of-lines.csv", PLAIN.replace("b", '"b\n(m)"', 1).encode()),
    Form("inches.csv", TEXTS.replace('"q"', '5" q').replace('"s"', '6" s').encode()),
    Form("ragged.csv", PLAIN.encode() + b"1,2,3,4\n", known="line 8: '1,2,3,4' has 4 fields"),
    # numbers
    *(
        Form(f"word-{i}.csv", with_cell(word), {"na_values": word}, True)
        for i, word in enumerate(["?", "-", ".", "--", "missing", "n.a.", "#DIV/0!", "(null)"])
    ),
    *(
        Form(f"null-{i}.csv", with_cell(word))
        for i, word in enumerate(["", "NA", "N/A", "None", "<NA>", "NaN", "NULL", "#N/A"])
    ),
    Form("thousands.csv", lines(cell=lambda x: f'"{x:,}"').encode(), {"thousands": ","}, True),
    Form(
        "apostrophes.csv",
        lines(mark=";", cell=lambda x: f"{x:,}".replace(",", "'")).encode(),
        {"sep": ";", "thousands": "'"},
        True,
    ),
    Form("decimal-comma.csv", lines(mark=";").replace(".", ",").encode(), STRIPPED, True),
    Form("german.csv", lines(mark=";", cell=german).encode(), {**STRIPPED, "thousands": "."}, True),
    Form(
        "narrow-blanks.csv",
        lines(mark=";", cell=lambda x: german(x).replace(".", "\u202f")).encode(),
        {**STRIPPED, "thousands": "\u202f", "engine": "python"},
        True,
    ),
    Form("either.csv", b"a;b\n1,234;2\n2,345;3\n", {"sep": ";", "thousands": ","}, True),
    Form("infinite.csv", b"a,b\ninf,1e5\n-inf,+2E-3\n"),
    Form("yes-no.csv", b"a,b\nTrue,1\nFalse,2\n"),
    Form("one-column.csv", b"value\n1.5\n2.5\n"),
]
