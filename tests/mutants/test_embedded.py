"""C++ in a Python file: every character of a text is traced to the place that wrote it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelward.mutants.embedded import embedded_texts, line_of, line_starts, plain_text
from kernelward.mutants.mutant import apply_edits

CALL = "\nload_inline(name='e', cpp_sources='', cuda_sources=SRC)\n"


def only(source: str) -> tuple[str, list[int]]:
    (found,) = embedded_texts(source)
    return found.text, found.starts


@given(
    body=st.text(st.characters(codec="utf-8", exclude_characters="\r\0", exclude_categories=("Cs",)), min_size=1),
    prefix=st.sampled_from(["é = 1; ", "", "# ünï\n"]),
)
def test_any_literal_is_read_as_python_reads_it_and_edits_land_where_they_should(body: str, prefix: str) -> None:
    literal = repr(body)
    source = f"{prefix}SRC = {literal}{CALL}"
    texts = embedded_texts(source)
    if not body.strip():
        assert texts == ()
        return
    (found,) = texts
    assert found.text == body
    for start in range(len(body)):
        edit = found.edit(start, start + 1, '<"\\\n>')
        assert edit is not None
        scope: dict[str, str] = {}
        exec(apply_edits(source, [edit]).removesuffix(CALL), scope)
        assert scope["SRC"] == body[:start] + '<"\\\n>' + body[start + 1 :]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('SRC = r"""a\\n"""', "a\\n"),
        ('SRC = """a\\n"""', "a\n"),
        ('SRC = "a" "b"', "ab"),
        ('SRC = ("a"\n  # why\n  "b")', "ab"),
        ('SRC = "a" + "b"', "ab"),
        ('T = 16\nSRC = f"x{{{T}}}"', "x{16}"),
        ('SRC = f"x{T + 1};"', "xkw_hole;"),
        ('HEAD = "h;"\nSRC = HEAD + "b;"', "h;b;"),
        ('SRC = "ab".strip()', "ab"),
        ('SRC = textwrap.dedent("ab")', "ab"),
        ('SRC = "T x;".replace("T", "int")', "T x;"),
        ('SRC = ["ab"]', "ab"),
        ('SRC = """a\\\nb"""', "ab"),
    ],
)
def test_the_ways_to_write_a_source(source: str, text: str) -> None:
    assert only(source + CALL)[0] == text


def test_sources_are_found_as_arguments_attributes_and_through_functions() -> None:
    assert [t.text for t in embedded_texts("load_inline('e', 'cpp', 'cuda')")] == ["cpp", "cuda"]
    assert [t.role for t in embedded_texts("load_inline('e', 'cpp', 'cuda')")] == ["cpp", "cuda"]
    attribute = "class A:\n    src = 'a;'\n    m = cpp_extension.load_inline('e', '', src)\n"
    assert only(attribute)[0] == "a;"
    through = 'def build(s):\n    return load_inline("e", "", s)\nbuild("__global__ void k() {}")\n'
    assert only(through)[0] == "__global__ void k() {}"


def test_documentation_is_no_source() -> None:
    assert embedded_texts('"""Explains __global__ void k() {}."""\n') == ()


def test_what_the_file_does_not_hold_cannot_be_edited() -> None:
    (found,) = embedded_texts('T = 16\nSRC = f"a{T}b"' + CALL)
    assert found.text == "a16b"
    assert found.edit(0, 2, "x") is None
    assert found.edit(2, 2, "x") is None
    assert found.edit(3, 4, "{x}") is not None
    wrapped = plain_text("b", "a", "c")
    assert wrapped.edit(0, 1, "x") is None
    assert wrapped.edit(1, 2, "x") is not None


def test_an_edit_does_not_cross_from_one_literal_into_another() -> None:
    (found,) = embedded_texts('SRC = "ab" "cd"' + CALL)
    assert found.edit(1, 3, "x") is None


def test_a_candidate_that_is_not_python_is_refused() -> None:
    with pytest.raises(ValueError, match="not Python"):
        embedded_texts("def :")


def test_lines_are_counted_from_one_whatever_ends_them() -> None:
    starts = line_starts("a\nb\r\nc")
    assert [line_of(starts, offset) for offset in (0, 1, 2, 5)] == [1, 1, 2, 3]
