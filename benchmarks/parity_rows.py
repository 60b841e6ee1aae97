"""Candidates for the parity run: right, wrong and crashing ones over our own problems, as JSONL on standard output.

    python benchmarks/parity_rows.py > rows.jsonl
    python -m kernelward.reward.kernelbench parity --checkout KERNELBENCH --candidates rows.jsonl --out parity.jsonl

The right ones are tests/honest; wrong and crashing ones are made here, a few for each problem, by changing what the
honest ones return. Every row says in `kind` what it is meant to be; the two checkers are not told.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HONEST = ROOT / "tests" / "honest"
PER_PROBLEM = 3  # right ones; the real checker takes seconds for each

# What is done to the honest result `out`. The small errors lie on both sides of the official tolerance.
WRONG = {
    "shifted": "out + 0.5",
    "scaled": "out * 1.5 + 0.1",
    "transposed_rows": "out.flip(0) * 2 + 1",
}
CRASHING = {
    "raises": 'raise RuntimeError("this kernel gives up")',
    "index": "return out.flatten()[out.numel() + 7]",
    "shape": "return out.unsqueeze(-1).expand(*out.shape, 3)",
    "attribute": "return out.no_such_method()",
    "mismatch": "return out + torch.zeros(out.numel() + 1, device=out.device)",
}


def wrapped(source: str, ending: str) -> str:
    """The honest candidate, renamed, and a model around it that ends differently."""
    renamed = re.sub(r"\bModelNew\b", "Honest", source)
    body = f"        out = super().forward(*args)\n        {ending}\n"
    return f"{renamed}\n\nclass ModelNew(Honest):\n    def forward(self, *args):\n{body}"


def rows() -> Iterator[dict[str, str]]:
    """Rows with `problem`, `code`, `kind` and `name`."""
    for number, folder in enumerate(sorted(p for p in HONEST.iterdir() if p.is_dir())):
        problem = str(ROOT / "examples" / "problems" / f"{folder.name}.py")
        honest = sorted(folder.glob("*.py"))
        triton = [f for f in honest if f.stem.startswith("triton")]
        for file in (honest[:PER_PROBLEM] + triton)[: PER_PROBLEM + 1]:
            yield {"problem": problem, "code": file.read_text(), "kind": "right", "name": f"{folder.name}/{file.stem}"}
        source = honest[0].read_text()
        for kind, endings in (("wrong", WRONG), ("crashing", CRASHING)):
            names = sorted(endings)
            for name in (names[number % len(names)], names[(number + 1) % len(names)]):
                ending = endings[name] if kind == "crashing" else f"return {endings[name]}"
                row = {"problem": problem, "code": wrapped(source, ending), "kind": kind}
                yield row | {"name": f"{folder.name}/{name}"}


if __name__ == "__main__":
    for row in rows():
        print(json.dumps(row))
