"""One name for one idea: what names of the package mean, beside the glossary of the docs."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from source_trees import MODULES, module_of, nodes
from source_trees import ROOT as EDL

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "explanation" / "concepts.md"
STANDARD_TERMS = Path(__file__).with_name("standard_terms.txt")

# Folders whose modules may share a name, because it is one idea there: the two bindings and what
# they have in common, and a verb from its command to its decision.
ALIKE = (
    {"torch", "tensorflow", "binding", "worker", "transparent", "contrib"},
    {
        "cli",
        "client",
        "zookeeper",
        "job",
        "host",
        "policy",
        "binding",
        "cluster",
        "events.py",
        "status.py",
        "records.py",
        "spec.py",
        "text.py",
    },
    {"cli", "simulator"},
)
# The same idea in more than these places.
SAME = {
    "Batch": "the samples of a step, and the stage of tf.data",
    "check_alike": "what is summed exactly, and the batch sizes of workers",
    "Dataset": "PyTorch's and TensorFlow's",
    "Job": "the record of a job, and the handles by which a program and a test reach it",
    "Session": "ZooKeeper's, and that of a TensorFlow graph",
    "join": "the verb, and Horovod's function",
    "policy": "the verb, and the function of the scripts",
    "run": "the verb, and Horovod's elastic.run",
}
# Words that were private, each with the field's word that took its place.
REPLACED = {
    "seat": "member",
    "mailbox": "shared state",
    "leaver": "departure",
    "guest": "joined host",
    "bringer": "state source",
    "wish": "size request",
    "asker": "requested by",
    "lend": "borrow",
    "lent": "borrowed",
    "heal": "resync",
    "depose": "remove the leader",
    "candidacy": "candidate",
    "mute": "unresponsive",
    "ordeal": "scenario",
    "door": "endpoint",
}


@cache
def classes() -> set[str]:
    """Return the names of all classes."""
    return {
        node.name for each in nodes().values() for node in each if isinstance(node, ast.ClassDef)
    }


def words(name: str) -> list[str]:
    """Return the words of a name, in lower case: of CamelCase or of snake_case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def singular(word: str) -> str:
    return word if word.endswith("ss") else word.removesuffix("s")


def standard_terms() -> list[str]:
    lines = STANDARD_TERMS.read_text(encoding="utf-8").splitlines()
    return [word for line in lines if not line.startswith("#") for word in line.split()]


def glossary() -> list[str]:
    """Return the words that have a row in the glossary, as "ledger" or "state source"."""
    table = GLOSSARY.read_text(encoding="utf-8").partition("\n## Glossary\n")[2]
    rows = re.findall(r"^\| ([a-z][^|]*?) \|", table.partition("\n## ")[0], flags=re.MULTILINE)
    return [term for row in rows if row != "word" for term in row.split(", ")]


def public_names() -> dict[str, list[str]]:
    """Each public class and function at the top of a module: its name -> the files that have it."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in MODULES:
        kinds = (ast.ClassDef, ast.FunctionDef)
        names = {node.name for node in module_of(file).body if isinstance(node, kinds)}
        for name in names:
            if not name.startswith("_"):
                found[name].append(file)
    return found


def test_one_name_means_one_thing() -> None:
    several = {
        name: files
        for name, files in public_names().items()
        if len(files) > 1
        and name not in SAME
        and not any({file.split("/")[0] for file in files} <= folders for folders in ALIKE)
    }
    assert not several, f"give each its own name: {several}"


def test_a_private_word_has_a_row_in_the_glossary() -> None:
    known = {singular(word) for word in standard_terms()}
    known |= {singular(word) for term in glossary() for word in re.split(r"[ -]", term)}
    used = {word: name for name in classes() for word in words(name)}
    unknown = {word: name for word, name in used.items() if singular(word) not in known}
    assert not unknown, (
        f"{unknown}: in no row of the glossary ({GLOSSARY.name}). Take the word that PyTorch, "
        f"Horovod, ZooKeeper or Kubernetes has; if that is it, add it to {STANDARD_TERMS.name}. A "
        "word that only edl has needs a row, and there is room for 15"
    )


def test_the_glossary_has_at_most_fifteen_rows() -> None:
    table = GLOSSARY.read_text(encoding="utf-8").partition("\n## Glossary\n")[2]
    rows = re.findall(r"^\| [a-z]", table.partition("\n## ")[0], flags=re.MULTILINE)
    assert 1 < len(rows) - 1 <= 15  # without its head


@pytest.mark.parametrize("term", glossary())
def test_each_word_of_the_glossary_is_in_use(term: str) -> None:
    """In a name or a docstring of the code; a word that nothing uses any more takes its row."""
    said = re.compile(rf"\b{re.sub('[ -]', '[ _-]?', term)}", flags=re.IGNORECASE)
    assert any(said.search(path.read_text(encoding="utf-8")) for path in EDL.rglob("*.py"))


def test_standard_terms_are_in_use_and_in_order() -> None:
    terms = standard_terms()
    assert terms == sorted(set(terms))
    used = {singular(word) for name in classes() for word in words(name)}
    assert not [term for term in terms if singular(term) not in used]
    own = {singular(word) for term in glossary() for word in re.split(r"[ -]", term)}
    assert not own & set(terms), "a word of the glossary is not the field's"


def test_no_replaced_word_comes_back() -> None:
    back = [
        f"{file}: {node.name} ({REPLACED[singular(word)]})"
        for file, each in nodes().items()
        for node in each
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        for word in words(node.name)
        if singular(word) in REPLACED
    ]
    assert not back
