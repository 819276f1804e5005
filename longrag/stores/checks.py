"""What a vector store must do for retrieval over it to be exact or honest: a suite for any store.

A store's author or user makes an empty store of vectors of ``WIDTH`` values; an adapter fills and
asks it through the package's own retriever; ``check_store`` fills it with about a thousand rows and
compares every answer with a search of all rows here. Nothing in it is random: every run asks the
same. The store should compare by cosine.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from longrag.errors import InvalidParameterError
from longrag.import_paths import import_object

WIDTH: Final = 16
"""How many values the vectors have that the store is filled with."""

HOSTILE: Final = (
    "O'Brien.md",
    "x'; DROP TABLE victim; COMMIT; SELECT 1 --.md",
    'say "hi"',
    "C:\\notes\\a",
    "ends in \\",
    "/users/:id",
    "1",
    "doc0",
    "nan",
    "null",
    "true",
    "50%_like",
    "$ne",
    "{}",
    "[1]",
    "two\nlines",
    "Ümläut 日本 🙂",
    "a) OR (1=1",
)
"""Ids that mean something in one store's language or another's."""

_GREEDY: Final = "greedy"
_UNITS: Final = 40
_CHUNKS: Final = 6


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One row that the store is filled with: a chunk of a unit, from character ``start`` on."""

    id: str
    unit: str
    text: str
    start: int
    vector: tuple[float, ...]
    even: int


@dataclass(frozen=True, slots=True)
class CheckFound:
    """One unit as the retriever gave it."""

    unit: str
    text: str
    exact: bool
    complete: bool
    short: bool


class StoreUnderTest(Protocol):
    """A new store and this package's retriever over it, in one of the frameworks.

    A question is the text under which its vector is known: see ``question_vector``.
    """

    def add(self, rows: Sequence[CheckRow]) -> None:
        """Add rows, of which the key ``"unit"`` names the unit and ``"even"`` is a number."""

    def retrieve(self, question: str, k: int, *, even: int | None = None) -> list[CheckFound]:
        """Retrieve ``k`` units, with ``even`` of the rows alone that have this number."""

    async def aretrieve(self, question: str, k: int) -> list[CheckFound]:
        """Retrieve ``k`` units by the async calls."""

    def rank_rows(self, question: str, rows: int) -> list[str]:
        """Return the units of the rows that the framework's own retriever gives, best first."""

    def delete(self, row_ids: Sequence[str]) -> bool:
        """Take rows out; False where the store cannot."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check; ``detail`` says what is known of it, or what is wrong."""

    check: str
    passed: bool
    detail: str


def check_rows() -> list[CheckRow]:
    """Return the rows that a store is filled with, in a fixed order."""
    rng = np.random.default_rng(7)
    rows: list[CheckRow] = []
    near = _unit(_QUESTIONS[0] + 0.01 * rng.standard_normal((600, WIDTH)))
    _add(rows, _GREEDY, near)
    for number in range(_UNITS):
        _add(rows, f"page-{number}.md", _unit(rng.standard_normal((_CHUNKS, WIDTH))))
    for name, vector in zip(HOSTILE, _HOSTILE_VECTORS, strict=True):
        _add(rows, name, _unit(vector + 0.05 * rng.standard_normal((2, WIDTH))))
    return rows


def question_vector(question: str) -> list[float]:
    """Return the vector of a question, or of the text of a row; the first axis for any other."""
    if question.startswith("question "):
        return [float(value) for value in _QUESTIONS[int(question.split()[1])]]
    if question.startswith("hostile "):
        return [float(value) for value in _HOSTILE_VECTORS[int(question.split()[1])]]
    return list(_vectors().get(question, (1.0, *[0.0] * (WIDTH - 1))))


def _unit(vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    scaled: npt.NDArray[np.float64] = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return scaled


_QUESTIONS: Final = _unit(np.random.default_rng(0).standard_normal((9, WIDTH)))
_HOSTILE_VECTORS: Final = _unit(np.random.default_rng(1).standard_normal((len(HOSTILE), WIDTH)))
_KNOWN: dict[str, tuple[float, ...]] = {}


def _vectors() -> dict[str, tuple[float, ...]]:
    if not _KNOWN:
        _KNOWN.update({row.text: row.vector for row in [*check_rows(), *_late_rows()]})
    return _KNOWN


def _add(rows: list[CheckRow], unit: str, vectors: Iterable[npt.NDArray[np.float64]]) -> None:
    for number, vector in enumerate(vectors):
        index = len(rows)
        # Every text is as long as any other, so that offsets are easily known.
        text = f"[{index:05d}] word{index:05d}"
        rows.append(
            CheckRow(
                str(uuid.UUID(int=index + 1)),
                unit,
                text,
                number * (len(text) + 1),
                tuple(float(np.float32(value)) for value in vector),
                number % 2,
            )
        )


def _late_rows() -> list[CheckRow]:
    rows: list[CheckRow] = []
    _add(rows, "late.md", _unit(np.random.default_rng(3).standard_normal((40, WIDTH))))
    return [
        CheckRow(
            str(uuid.UUID(int=100_000 + n)),
            row.unit,
            f"late{row.text}",
            row.start * 2,
            row.vector,
            0,
        )
        for n, row in enumerate(rows)
    ]


class _Checks:
    """The checks in their order; those that change the store come last."""

    def __init__(self, store: StoreUnderTest) -> None:
        self.store = store
        self.rows = check_rows()

    def ranking(self) -> str:
        """The best units in their order, by every row of the store."""
        same, asked, exact = 0, 0, True
        for number in range(1, len(_QUESTIONS)):
            for k in (4, 20):
                found = self._retrieved(f"question {number}", k)
                wanted = self._brute_force(f"question {number}", k)
                if all(one.exact for one in found):
                    assert [one.unit for one in found] == wanted, "called exact, and is not"
                else:
                    exact = False
                same += len({one.unit for one in found} & set(wanted))
                asked += len(wanted)
        return "exact" if exact else f"approximate, {same} of {asked} units the same"

    def adversary(self) -> str:
        """Six hundred near-identical best rows of one unit hide no other."""
        for k in (4, 30):
            found = self._retrieved("question 0", k)
            assert found[0].unit == _GREEDY, f"{found[0].unit!r} came first"
            if all(one.exact for one in found):
                wanted = self._brute_force("question 0", k)
                assert [one.unit for one in found] == wanted, "called exact, and is not"
        return "no unit is hidden"

    def all_units(self) -> str:
        """With k beyond the number of units, all of them come."""
        there = {row.unit for row in self.rows}
        found = self.store.retrieve("question 1", len(there) + 9)
        if found and found[0].short:
            return f"{len(found)} of {len(there)}, and says so"
        assert {one.unit for one in found} == there, f"{len(found)} of {len(there)}, no word"
        return "all"

    def whole(self) -> str:
        """A unit that is called complete has the text of all its rows."""
        whole = asked = 0
        for number in range(len(_QUESTIONS)):
            for one in self._retrieved(f"question {number}", 8):
                texts = [row.text for row in self.rows if row.unit == one.unit]
                missing = [text for text in texts if text not in one.text]
                assert not (one.complete and missing), f"{one.unit!r} lacks {len(missing)} rows"
                whole, asked = whole + one.complete, asked + 1
        return "all" if whole == asked else f"{whole} of {asked}, the others say so"

    def hostile_ids(self) -> str:
        """Ids are data, whatever they look like."""
        missed = 0
        for number, name in enumerate(HOSTILE):
            found = self._retrieved(f"hostile {number}", 3)
            if found[0].unit != name and not found[0].exact:
                missed += 1
                continue
            assert found[0].unit == name, f"{name!r} was not found but {found[0].unit!r}"
            texts = [row.text for row in self.rows if row.unit == name]
            if found[0].complete:
                assert all(text in found[0].text for text in texts), f"{name!r} is not whole"
        self.all_units()
        return f"all {len(HOSTILE)}" if not missed else f"all but {missed} that the ranking misses"

    def filters(self) -> str:
        """A filter hides what it leaves out, and leaves nothing else out."""
        try:
            found = self.store.retrieve("question 2", 6, even=1)
        except (NotImplementedError, ValueError):
            return "the store has none"
        hidden = [row.text for row in self.rows if row.even != 1]
        for one in found:
            assert not [text for text in hidden if text in one.text], "shows what was left out"
        if found and found[0].exact:
            wanted = self._brute_force("question 2", 6, even=1)
            assert [one.unit for one in found] == wanted, "called exact, and is not"
        assert len(found) == 6 or (found and found[0].short), f"{len(found)} of 6 units, no word"
        return "kept"

    def own_mode(self) -> str:
        """Units come in the order in which the framework's own retriever ranks their rows."""
        for number in (1, 3):
            question = f"question {number}"
            stock = list(dict.fromkeys(self.store.rank_rows(question, 16)))[:4]
            found = [one.unit for one in self.store.retrieve(question, 4)][: len(stock)]
            assert found == stock, f"{found} and not {stock}"
        return "same order"

    def async_calls(self) -> str:
        """The async calls give what the sync ones do."""
        sync = [self.store.retrieve(f"question {number}", 4) for number in range(3)]

        async def together() -> list[list[CheckFound]]:
            calls = (self.store.aretrieve(f"question {number}", 4) for number in range(3))
            return list(await asyncio.gather(*calls))

        try:
            found = asyncio.run(together())
        except (NotImplementedError, ValueError, AssertionError, AttributeError) as error:
            return f"not with this store: {type(error).__name__}"
        assert found == sync, "they differ"
        return "same"

    def beside_a_writer(self) -> str:
        """Readers beside a writer get whole answers."""
        late = _late_rows()

        def write() -> None:
            for first in range(0, len(late), 10):
                self.store.add(late[first : first + 10])

        with ThreadPoolExecutor(4) as pool:
            writer = pool.submit(write)
            reads = [pool.submit(self._retrieved, f"question {n % 9}", 4) for n in range(16)]
            writer.result()
            answers = [read.result() for read in reads]
        self.rows = [*self.rows, *late]
        assert all(len(answer) == 4 for answer in answers), "too few units"
        return "ok"

    def deletes(self) -> str:
        """What was deleted does not come back, and nothing else goes."""
        best = self._retrieved("question 3", 1)[0].unit
        if not self.store.delete([row.id for row in self.rows if row.unit == best]):
            return "the store cannot"
        self.rows = [row for row in self.rows if row.unit != best]
        found = self._retrieved("question 3", 4)
        assert best not in {one.unit for one in found}, f"{best!r} came back"
        return "ok"

    def _retrieved(self, question: str, k: int) -> list[CheckFound]:
        found = self.store.retrieve(question, k)
        units = [one.unit for one in found]
        assert len(set(units)) == len(units), "a unit came twice"
        assert len(found) == k or (found and found[0].short), f"{len(found)} of {k}, no word"
        return found

    def _brute_force(self, question: str, k: int, *, even: int | None = None) -> list[str]:
        vector, best = np.array(question_vector(question)), dict[str, float]()
        for row in self.rows:
            if even is None or row.even == even:
                score = float(np.array(row.vector) @ vector)
                best[row.unit] = max(best.get(row.unit, -2.0), score)
        return sorted(best, key=lambda unit: -best[unit])[:k]


CHECKS: Final = (
    *("ranking", "adversary", "all_units", "whole", "hostile_ids", "filters", "own_mode"),
    *("async_calls", "beside_a_writer", "deletes"),
)
"""The names of the checks in their order."""


def check_store(store: StoreUnderTest, only: Sequence[str] = CHECKS) -> list[CheckResult]:
    """Fill a new store and run the checks on it; what one raises is its result.

    Args:
        store: an empty store.
        only: the names of the checks to run.
    """
    checks = _Checks(store)
    store.add(checks.rows)
    return [_result(name, getattr(checks, name)) for name in CHECKS if name in only]


def _result(name: str, check: Callable[[], str]) -> CheckResult:
    try:
        return CheckResult(name, True, check())
    except AssertionError as error:
        return CheckResult(name, False, str(error) or "AssertionError")
    except Exception as error:  # noqa: BLE001 - what a store raises is the result of the check
        return CheckResult(name, False, f"{type(error).__name__}: {error}"[:200])


def as_table(results: dict[str, list[CheckResult]]) -> str:
    """Write the results of several stores as a Markdown table, one row for each store."""
    lines = [f"| store | {' | '.join(CHECKS)} |", "|---" * (len(CHECKS) + 1) + "|"]
    for name, own in results.items():
        cells = {one.check: one.detail if one.passed else f"**{one.detail}**" for one in own}
        shown = (cells.get(check, "").replace("|", "\\|").replace("\n", " ") for check in CHECKS)
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


GROUP: Final = "longrag.stores"
"""The entry points by which an adapter tells how its stores are checked: one a framework."""

_UNKNOWN: Final = """\
What these checks cannot know: whether the ranking stays exact in a larger store or with another
metric, whether ids other than those tried are safe in a filter, and what the store does when it
fails. What is True in `exact` and `complete` was believed of its class, and not refuted here."""


def check_named_store(framework: str, factory: str) -> bool:
    """Check the store that a function makes, print the results, and return whether all passed.

    Args:
        framework: the name of an adapter's entry point, ``"llama-index"`` or ``"langchain"``.
        factory: ``"module:function"``. The function returns a new, empty store; one for LangChain
            takes the embedding model that the store is to use.

    Raises:
        InvalidParameterError: there is no such adapter or function.
    """
    adapters = {found.name: found for found in entry_points(group=GROUP)}
    if framework not in adapters:
        raise InvalidParameterError(
            "framework",
            framework,
            f"one of {sorted(adapters)}",
            "Install longrag with the extra of the framework.",
        )
    make = import_object("factory", factory)
    adapter: Callable[[Callable[..., Any]], Any] = adapters[framework].load()
    results = check_store(adapter(make))
    print(f"{as_table({factory: results})}\n\n{_UNKNOWN}")  # noqa: T201 - a command's output
    return all(one.passed for one in results)


def wrap_unless_ready(made: Any, wrap: Callable[[Any], Any]) -> Any:
    """Return what a function made if it can be checked as it is, or else wrapped."""
    ready = all(hasattr(made, name) for name in ("add", "retrieve", "aretrieve", "delete"))
    return made if ready else wrap(made)
