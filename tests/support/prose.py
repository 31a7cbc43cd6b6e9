"""Finds sentences that a reader is likely to read twice, in comments, docstrings and Markdown.

The rules know patterns, not meaning. A finding is a place to rewrite; a text without findings can still be unclear.
"""

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CPP_SUFFIXES = frozenset({".h", ".cpp", ".c", ".cu", ".j2"})
SUFFIXES = CPP_SUFFIXES | {".py", ".md"}
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]+")


@dataclass(frozen=True)
class Rule:
    """A pattern, and what a writer does about it. `opens`: the pattern must match where a text block begins."""

    advice: str
    pattern: re.Pattern[str]
    opens: bool = False

    def count(self, text: str) -> int:
        """Returns how often `text`, one block on one line, breaks this rule."""
        if self.opens:
            return int(self.pattern.match(text) is not None)
        return sum(1 for _ in self.pattern.finditer(text))


@dataclass(frozen=True)
class Finding:
    """A rule that the text block at `line` (from 1) of a file breaks."""

    line: int
    rule: Rule
    text: str


@dataclass(frozen=True)
class Report:
    """The findings of one or more files, and the number of words that were read."""

    words: int
    findings: tuple[Finding, ...]

    @property
    def rate(self) -> float:
        """Findings per 1,000 words."""
        return 1000 * len(self.findings) / max(1, self.words)


_PREPOSITIONS = (
    "Of|Those|That of|By|As|From|Behind|Beside|Beyond|Under|With|Without|In the order|So many|As many|Held by|Also"
)
# "With the lock held, it is safe." has a verb and then a comma or a period: such a sentence has a subject.
_LATER_VERB = r"\b(?:is|are|does|do|must|may|can|will|has|have)\b.{0,40}[,.]"

RULES = (
    Rule("give the sentence a subject", re.compile(rf"(?:{_PREPOSITIONS})\b(?!.*{_LATER_VERB})"), opens=True),
    Rule(
        "begin with the noun that the clause describes",
        re.compile(r"(?:(?:What|Whose|Whom|Who|Whether)\b|Where\b(?![^.]{0,80}[,:]))(?!.*\?)"),
        opens=True,
    ),
    Rule('repeat the noun in place of "that of"', re.compile(r"\b(?:that|those) of\b")),
    Rule(
        "split the sentence before the preposition and its relative pronoun",
        re.compile(r"\b(?:of|to|by|in|from|for|with|over|at) (?:which|whom|whose)\b"),
    ),
    Rule(
        'name the thing in place of "what"',
        re.compile(r"\b(?:of|by|with|than|for|from|in|to|as|and|that|behind|beside) what\b"),
    ),
    Rule('name who acts: "the rank that ..."', re.compile(r"(?:^|[.;:] )(?:Who|Whoever|Nobody who) [a-z]+")),
    Rule(
        "say what the amount is compared with",
        re.compile(r"\bby as much|\bso many\b|\bas many (?!as )(?![^.,;]{0,60}\bas\b)"),
    ),
    Rule(
        'write "only" before the word',
        re.compile(r"\b(?!(?:run|runs|stand|stands|left|is|are|works?|leave)\b)\w+ alone\b(?! is| are)"),
    ),
    Rule(
        "say it without the idiom",
        re.compile(r"\b(?:hangs? on|at hand|come to (?:know|see)|is told|are told|says so)\b"),
    ),
    Rule('name the owner and the thing in place of "own"', re.compile(r"\b(?:its|their|one's|of|an?) own\b(?! \w+)")),
)


def inspect_files(paths: list[Path]) -> Report:
    """Returns the findings of `paths` together. Files of other types than `SUFFIXES` count as empty."""
    words, findings = 0, []
    for path in paths:
        for line, text in _read_blocks(path):
            words += len(_WORD.findall(text))
            for rule in RULES:
                findings += [Finding(line, rule, f"{path}: {text}")] * rule.count(text)
    return Report(words, tuple(findings))


def inspect_text(text: str) -> Report:
    """Returns the findings of one sentence or paragraph."""
    broken = [Finding(1, rule, text) for rule in RULES for _ in range(rule.count(text))]
    return Report(len(_WORD.findall(text)), tuple(broken))


def _read_blocks(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the first line and the text of each comment block, docstring paragraph or Markdown paragraph."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _join_comments(_python_comments(text))
        yield from _docstrings(text)
    elif path.suffix in CPP_SUFFIXES:
        yield from _join_comments(_cpp_comments(text))
    elif path.suffix == ".md":
        yield from _paragraphs(_drop_markdown_structure(text), 1)


@dataclass(frozen=True)
class _Comment:
    line: int
    text: str
    fills_line: bool


def _python_comments(text: str) -> Iterator[_Comment]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield _Comment(token.start[0], token.string.lstrip("#! "), token.line.lstrip().startswith("#"))


def _cpp_comments(text: str) -> Iterator[_Comment]:
    for number, line in enumerate(text.split("\n"), 1):
        # Two slashes after a colon or a quote belong to an address or a string.
        if comment := re.search(r"(?<![:\"'])//+(.*)", line):
            yield _Comment(number, comment[1].strip(), line.lstrip().startswith("//"))


def _join_comments(comments: Iterator[_Comment]) -> Iterator[tuple[int, str]]:
    """Joins comments that fill successive lines into one block."""
    first, last, lines = 0, 0, list[str]()
    for comment in comments:
        if not (comment.fills_line and lines and comment.line == last + 1):
            if lines:
                yield first, " ".join(lines)
            first, lines = comment.line, []
        lines.append(comment.text)
        last = comment.line if comment.fills_line else -1
    if lines:
        yield first, " ".join(lines)


def _docstrings(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING:
            literal = token.string.lstrip("rRbBuUfF")
            if literal.startswith(('"""', "'''")):
                yield from _paragraphs(literal[3:-3], token.start[0])


def _drop_markdown_structure(text: str) -> str:
    """Blanks code blocks, tables, headings, HTML and pictures, and makes each list item a paragraph."""
    text = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL)
    text = re.sub(r"^(?:\||#|<|!\[).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n", text, flags=re.MULTILINE)


def _paragraphs(text: str, first_line: int) -> Iterator[tuple[int, str]]:
    line = first_line
    for part in re.split(r"(\n\s*\n)", text):
        if part.strip():
            yield line, " ".join(part.split())
        line += part.count("\n")
