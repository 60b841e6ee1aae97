"""Finding the candidate in a completion."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelward.reward.completion import MAX_COMPLETION, Extraction, extract, extract_code, normalise

ANSWER = "import torch\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x.relu()\n"
REFERENCE = "import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return torch.relu(x)\n"
OTHER = ANSWER.replace("x.relu()", "x.clamp(min=0)")


def fenced(code: str, info: str = "python") -> str:
    return f"```{info}\n{code}```\n"


@pytest.mark.parametrize("info", ["python", "py", "", "Python title=kernel.py", "cuda"])
def test_one_fenced_block_is_the_candidate(info: str) -> None:
    assert extract_code(f"Here it is:\n\n{fenced(ANSWER, info)}\nIt is fast.") == ANSWER


def test_a_block_opened_behind_text_and_closed_behind_code_is_read() -> None:
    assert extract_code(f"Sure: ```python\n{ANSWER.rstrip()}```") == ANSWER.rstrip()


def test_tildes_and_longer_fences_are_fences() -> None:
    assert extract_code(f"~~~python\n{ANSWER}~~~") == ANSWER
    quoting = f"````markdown\n```\nnot the end\n```\n{ANSWER}````\n"
    assert ANSWER in extract_code(quoting)
    assert extract_code(quoting).count("```") == 2


def test_of_several_blocks_the_last_that_defines_the_class_is_taken() -> None:
    text = fenced(ANSWER) + "Better:\n" + fenced(OTHER) + "Use it so:\n" + fenced("m = ModelNew()\nprint(m)\n")
    assert extract_code(text) == OTHER


def test_a_quoted_reference_before_the_answer_is_not_the_candidate() -> None:
    assert extract_code(f"The reference is\n{fenced(REFERENCE)}so I write\n{fenced(ANSWER)}") == ANSWER


def test_a_quoted_reference_after_the_answer_is_not_the_candidate() -> None:
    assert extract_code(f"{fenced(ANSWER)}which replaces\n{fenced(REFERENCE)}") == ANSWER


def test_a_complete_block_goes_before_a_later_one_that_was_cut_off() -> None:
    assert extract_code(fenced(ANSWER) + "Or shorter:\n```python\nclass ModelNew(torch.nn.Mod") == ANSWER


def test_an_unclosed_block_is_read_to_the_end() -> None:
    assert extract_code(f"```python\n{ANSWER}") == ANSWER


def test_a_block_that_was_never_closed_ends_where_the_next_one_opens() -> None:
    assert extract_code(f"```python\n{REFERENCE}\nNow mine:\n{fenced(ANSWER)}") == ANSWER


def test_a_class_made_by_assignment_counts_as_a_definition() -> None:
    made = "import torch\n\ndef build():\n    return torch.nn.ReLU\n\nModelNew = build()\n"
    assert extract_code(fenced(made) + fenced("print('done')\n")) == made


def test_a_fence_inside_a_docstring_does_not_end_the_block() -> None:
    code = f'"""Example:\n\n```python\nModelNew()(x)\n```\n"""\n{ANSWER}'
    assert extract_code(fenced(code)) == code


def test_a_fence_inside_a_docstring_of_unfenced_code_does_no_harm() -> None:
    code = f'"""Example:\n\n```python\nModelNew()(x)\n```\n"""\n{ANSWER}'
    assert extract_code(code) == code.strip("\n")


def test_a_docstring_that_was_cut_off_does_not_swallow_the_next_block() -> None:
    text = f'```python\nclass ModelNew:\n    """never closed\n```\nAgain:\n```python\n"""Doc."""\n{ANSWER}```\n'
    assert extract_code(text) == f'"""Doc."""\n{ANSWER}'


def test_an_indented_block_in_a_list_is_dedented() -> None:
    inner = "".join(f"   {line}\n" if line else "\n" for line in ANSWER.rstrip("\n").split("\n"))
    assert extract_code(f"1. My kernel:\n\n   ```python\n{inner}   ```\n") == ANSWER


def test_reasoning_before_the_answer_is_dropped() -> None:
    text = f"<think>\nMaybe\n{fenced(OTHER)}No, wait.\n</think>\n\n{fenced(ANSWER)}"
    assert extract_code(text) == ANSWER


def test_reasoning_whose_opening_tag_stood_in_the_prompt_is_dropped() -> None:
    assert extract_code(f"Maybe\n{fenced(OTHER)}No.\n</think>\n{fenced(ANSWER)}") == ANSWER
    assert extract_code(f"Maybe\n```python\n{OTHER}\n</think>\n{fenced(ANSWER)}") == ANSWER


def test_a_draft_in_the_reasoning_is_no_answer() -> None:
    nothing = Extraction("", "no-code")
    assert extract(f"<think>\n{fenced(OTHER)}</think>\nI give up.") == nothing
    assert extract(f"Maybe\n```python\n{OTHER}\n</think>\nI give up.") == nothing


def test_reasoning_that_never_ends_holds_no_candidate() -> None:
    assert extract(f"<think>\nMaybe\n{fenced(ANSWER)}") == Extraction("", "no-code")


def test_a_tag_inside_the_code_is_code() -> None:
    for tags in ("<think></think>", "</think>"):
        code = ANSWER + f'TAGS = "{tags}"\n'
        assert extract_code(fenced(code)) == code


def test_text_without_a_fence_is_taken_from_its_first_line_of_code() -> None:
    assert extract_code(ANSWER) == ANSWER.strip("\n")
    assert extract_code(f"The kernel follows.\n\n{ANSWER}") == ANSWER.strip("\n")


def test_prose_and_nothing_hold_no_candidate() -> None:
    nothing = Extraction("", "no-code")
    for completion in ("", "   \n", "I cannot help with ModelNew.", None, [], 7, [{"role": "assistant"}], [None]):
        assert extract(completion) == nothing


def test_code_that_defines_no_class_is_left_for_the_judge_to_name() -> None:
    assert extract_code(fenced("x = 1\n")) == "x = 1\n"


def test_chat_messages_give_the_assistants_last_answer_with_the_class() -> None:
    chat = [
        {"role": "assistant", "content": fenced(OTHER), "tool_calls": [{"function": {"name": "run"}}]},
        {"role": "tool", "name": "run", "content": fenced("class ModelNew:\n    leaked = True\n")},
        {"role": "assistant", "content": fenced(ANSWER)},
        {"role": "assistant", "content": "I am done."},
    ]
    assert extract_code(chat) == ANSWER


def test_a_tools_answer_is_never_the_candidate() -> None:
    assert extract([{"role": "tool", "content": fenced(ANSWER)}]) == Extraction("", "no-code")


def test_message_content_may_be_typed_parts() -> None:
    parts = [{"type": "reasoning", "text": fenced(OTHER)}, {"type": "text", "text": fenced(ANSWER)}]
    assert extract_code([{"role": "assistant", "content": parts}]) == ANSWER
    assert extract_code({"role": "assistant", "content": {"type": "text", "text": fenced(ANSWER)}}) == ANSWER


def test_line_ends_and_byte_order_marks_are_unified() -> None:
    assert extract_code(fenced(ANSWER).replace("\n", "\r\n")) == ANSWER
    assert extract_code("\ufeff" + ANSWER) == ANSWER.strip("\n")
    assert normalise("\r\n\r\na = 1\r\n") == normalise("a = 1") == "a = 1"


def test_normalising_keeps_what_may_matter() -> None:
    assert normalise("  x = 1 \n") == "  x = 1 "


def test_text_that_was_not_utf8_becomes_encodable() -> None:
    code = extract_code(fenced(ANSWER + "# \udcff\ud800\n"))
    assert code.encode("utf-8").decode().endswith("# \ufffd\ufffd\n")
    assert "\ufffd" in extract_code(fenced(ANSWER).encode() + b"```python\n\xff\xfe\nclass ModelNew: pass\n```")


def test_ten_megabytes_are_refused_at_once() -> None:
    started = time.process_time()
    assert extract("x" * 10_000_000) == Extraction("", "too-large")
    assert extract([{"role": "assistant", "content": fenced(ANSWER) + "#" * 10_000_000}]).reason == "too-large"
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    "piece",
    [
        "`",
        "```",
        "```\n",
        "```python\n",
        "~~~\n",
        '"""',
        "'''",
        '"\\',
        "<think>",
        "</think>\n",
        "#",
        " ",
        "\n",
        '"',
        "\t```x`",
    ],
)
def test_hostile_repetition_takes_linear_time(piece: str) -> None:
    text = piece * (MAX_COMPLETION // 16 // len(piece))  # quadratic time would take minutes from here on
    started = time.process_time()
    for attempt in (text, text + "x`y", "```python\n" + text, '```python\n"""' + text, "```python\n'" + text + "\n```"):
        extract(attempt)
    assert time.process_time() - started < 10.0


@given(st.text(alphabet=st.sampled_from(list("`~\"'#\\<>/think \nab(): cModelNew")), max_size=200))
def test_nothing_raises_and_the_result_is_encodable(text: str) -> None:
    found = extract(text)
    found.code.encode("utf-8")
    assert bool(found.code.strip()) == (found.reason == "")


@settings(max_examples=50)
@given(st.text(max_size=60).filter(lambda t: "```" not in t and "~~~" not in t and "<" not in t and "`" not in t))
def test_prose_around_a_fenced_answer_changes_nothing(prose: str) -> None:
    assert extract_code(f"{prose}\n{fenced(ANSWER)}{prose}") == ANSWER
