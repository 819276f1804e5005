"""Measure the constraint index of RICHES: building, memory, loading, and the next tokens.

    python benchmarks/key_index.py
    python benchmarks/key_index.py --documents 4595 --synthetic 1000000
    python benchmarks/key_index.py --peak 8333333 --vocabulary 150000

Real text is the prepared Wikispeedia corpus, cut into word pieces: the most frequent words with the
space before them, and single bytes for all others. Sentences are the whole keys; paragraphs are
what stretches are taken from. Synthetic keys have 6 to 18 tokens drawn by Zipf's law.

All runs share one process and one thread. Times of next tokens are medians over states reached by
random keys of the corpus: "first" asks a state for the first time, "again" when its answer is kept.
Below each row is the 99th percentile of the first time for one state, in CPU time.
A trie of dictionaries and, where it is installed, llguidance are given the same keys.

``--peak`` builds nothing but one index of whole synthetic keys and prints the largest memory of the
process: Python, numpy, the ids given (four bytes each, and eight a key), and the index.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402
from public_data import add_data_option, rows  # noqa: E402

from longrag.indexing import KeyIndex  # noqa: E402
from longrag.indexing.key_index.token_ids import TokenIds  # noqa: E402

PIECE = re.compile(r"\s?\w+|\s?[^\w\s]+|\s+")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$/]")
DEPTHS = 5
STATES = 300
BEAMS = 10
DRAWN = 1 << 20


class WordPieces:
    """The most frequent words as tokens, after 256 single bytes for all others."""

    fingerprint = "benchmark word pieces"

    def __init__(self, texts: Iterable[str], size: int) -> None:
        counts = Counter(piece for text in texts for piece in PIECE.findall(text))
        frequent = sorted(counts, key=lambda piece: (-counts[piece], piece))[: size - 256]
        self._ids = {piece: place + 256 for place, piece in enumerate(frequent)}
        self._texts = [bytes([byte]) for byte in range(256)] + [p.encode() for p in frequent]
        self.vocab_size = len(self._texts)
        self.pieces = tuple(self._texts)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        ids: list[int] = []
        for piece in PIECE.findall(text):
            known = self._ids.get(piece)
            if known is None:
                ids.extend(piece.encode())
            else:
                ids.append(known)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids."""
        return b"".join(self._texts[id_] for id_ in ids).decode("utf-8", "replace")


def flatten(sequences: Iterable[Sequence[int]]) -> TokenIds:
    """Put lists of ids into arrays, which is not part of what is measured."""
    parts = [np.array(sequence, np.int32) for sequence in sequences]
    offsets = np.cumsum([0, *map(len, parts)])
    return TokenIds(np.concatenate(parts), offsets)


def synthetic(count: int, vocab_size: int, seed: int = 0) -> TokenIds:
    """Draw keys of 6 to 18 tokens."""
    random = np.random.default_rng(seed)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(random.integers(6, 19, count), out=offsets[1:])
    flat = np.empty(int(offsets[-1]), np.int32)
    for piece in np.array_split(flat, len(flat) // DRAWN + 1):
        piece[:] = random.zipf(1.3, len(piece)) % vocab_size
    return TokenIds(flat, offsets)


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Time one run."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def resident() -> int:
    """Return the memory of this process in bytes; Linux alone tells."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * 4096 if statm.exists() else 0


def index_bytes(index: KeyIndex) -> tuple[int, int]:
    """Return the bytes of the constraint, and of the sources beside it."""
    form = sum(array.nbytes for part in index._parts for array in part.segment.arrays().values())
    sources = sum(array.nbytes for part in index._parts for array in part.sources.arrays().values())
    return form, sources


def walk(index: KeyIndex, ids: TokenIds, seed: int = 1) -> list[tuple[float, float, float]]:
    """Return for each depth the milliseconds to tell what follows.

    Medians for ten beams, asked first and again, and the 99th percentile of one state's first time.
    """
    random = np.random.default_rng(seed)
    places = random.integers(0, len(ids), STATES)
    times = []
    for depth in range(DEPTHS):
        prefixes = {tuple(ids[place][:depth].tolist()) for place in places.tolist()}
        states = [index.find(prefix) for prefix in sorted(prefixes)]
        cpu = time.thread_time()
        first, spent = [], []
        for state in states:
            first.append(seconds(lambda s=state: index.continuations(s))[0])
            cpu, before = time.thread_time(), cpu
            spent.append(cpu - before)
        again = [seconds(lambda s=state: index.continuations(s))[0] for state in states]
        times.append(
            (
                BEAMS * 1e3 * statistics.median(first),
                BEAMS * 1e3 * statistics.median(again),
                1e3 * float(np.quantile(spent, 0.99)),
            )
        )
    return times


def report(name: str, ids: TokenIds, vocab_size: int, mode: str) -> KeyIndex:
    """Build one index twice, the first time small to compile, and print its row."""
    small = TokenIds(ids.flat[:500], np.array([0, 500]))
    KeyIndex.from_token_ids(small, vocab_size=vocab_size, mode=mode)  # type: ignore[arg-type]
    # Numbering the sources is Python's own string formatting, and is timed with the build.
    build, index = seconds(
        lambda: KeyIndex.from_token_ids(ids, vocab_size=vocab_size, mode=mode)  # type: ignore[arg-type]
    )
    tokens, keys = len(ids.flat), len(ids)
    form, sources = index_bytes(index)
    times = walk(index, ids)
    shown = " ".join(f"{first:.3f}/{again:.3f}" for first, again, _ in times)
    print(
        f"| {name}, {mode} | {keys:,} | {tokens:,} | {build:.2f} | {keys / build / 1e6:.2f} "
        f"| {tokens / build / 1e6:.2f} | {form / tokens:.2f} | {sources / keys:.0f} | {shown} |"
    )
    slowest = ", ".join(f"{late:.3f}" for *_, late in times)
    print(f"99th percentile by depth, ms CPU: {slowest}")
    return index


def trie(ids: TokenIds, limit: int) -> None:
    """Build nested dictionaries over the first keys and print the same figures."""
    before = resident()

    def build() -> dict[int, Any]:
        root: dict[int, Any] = {}
        for place in range(min(limit, len(ids))):
            node = root
            for token in ids[place].tolist():
                node = node.setdefault(token, {})
            node[-1] = place
        return root

    took, root = seconds(build)
    memory = resident() - before
    count = min(limit, len(ids))
    random = np.random.default_rng(1)
    medians = []
    for depth in range(DEPTHS):
        times = []
        for place in random.integers(0, count, STATES).tolist():
            node = root
            for token in ids[place][:depth].tolist():
                node = node[token]
            times.append(seconds(lambda n=node: np.fromiter(n, np.int64, len(n)))[0])
        medians.append(f"{BEAMS * 1e3 * statistics.median(times):.3f}")
    tokens = int(ids.offsets[count])
    print(
        f"| trie of dictionaries | {count:,} | {tokens:,} | {took:.2f} | {count / took / 1e6:.2f} "
        f"| {tokens / took / 1e6:.2f} | {memory / tokens:.0f} | - | {' '.join(medians)} |"
    )


def masks(index: KeyIndex, ids: TokenIds, tokenizer: WordPieces, texts: list[str]) -> None:
    """Compare the mean time of a mask over the vocabulary along whole keys, one beam."""
    random = np.random.default_rng(2)
    chosen = random.integers(0, len(texts), 100).tolist()
    allowed = np.zeros(tokenizer.vocab_size, np.bool_)
    times = []
    for place in chosen:
        state = index.root
        for token in ids[place].tolist():
            start = time.perf_counter()
            tokens = index.continuations(state)
            allowed[tokens] = True
            state = index.advance(state, token)
            times.append(time.perf_counter() - start)
            allowed[tokens] = False
    print(f"mean mask and step along {len(texts):,} keys: {1e6 * statistics.fmean(times):.1f} us")
    try:
        import llguidance
        import llguidance.numpy
    except ImportError:
        print("llguidance is not installed")
        return
    before = resident()
    wrapped = llguidance.TokenizerWrapper(_Guided(tokenizer))
    guided = llguidance.LLTokenizer(wrapped, n_vocab=tokenizer.vocab_size + 1)
    pattern = "|".join(SPECIAL.sub(r"\\\g<0>", f" {text}") for text in texts)
    grammar = llguidance.LLMatcher.grammar_from_regex(pattern)
    limits = llguidance.LLParserLimits(initial_lexer_fuel=10**10, step_lexer_fuel=10**9)
    took, matcher = seconds(lambda: llguidance.LLMatcher(guided, grammar, limits=limits))
    if matcher.is_error():
        print(f"llguidance does not compile: {matcher.get_error()[-300:]}")
        return
    bitmask = llguidance.numpy.allocate_token_bitmask(1, tokenizer.vocab_size + 1)
    times = []
    for place in chosen:
        own = matcher.deep_copy()
        for token in ids[place].tolist():
            start = time.perf_counter()
            llguidance.numpy.fill_next_token_bitmask(own, bitmask)
            own.consume_token(token)
            times.append(time.perf_counter() - start)
    print(
        f"llguidance {llguidance.__version__ if hasattr(llguidance, '__version__') else ''}: "
        f"compiles in {took:.1f} s, {1e6 * statistics.fmean(times):.1f} us, "
        f"{(resident() - before) / 1e6:.0f} MB"
    )


class _Guided:
    """The tokenizer as llguidance wants it, with a last token that ends the text."""

    def __init__(self, tokenizer: WordPieces) -> None:
        self._tokenizer = tokenizer
        self.tokens = [*tokenizer.pieces, b"<end>"]
        self.eos_token_id = tokenizer.vocab_size
        self.bos_token_id = None
        self.special_token_ids = [tokenizer.vocab_size]

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode())


def loading(index: KeyIndex) -> None:
    """Print how long a saved index takes to load, mapped, without and with its checksums."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        took, _ = seconds(lambda: index.save(path))
        plain = min(
            seconds(lambda: KeyIndex.load(path, tokenizer=None, verify=False))[0] for _ in range(5)
        )
        checked, _ = seconds(lambda: KeyIndex.load(path, tokenizer=None))
        size = sum(file.stat().st_size for file in path.iterdir())
    print(
        f"{len(index):,} keys, {size / 1e6:.0f} MB: saved in {took:.2f} s, loaded in "
        f"{1e3 * plain:.1f} ms, with checksums in {1e3 * checked:.0f} ms"
    )


def peak(count: int, vocab_size: int) -> None:
    """Build one index and print its time and the peak memory of this process."""
    ids = synthetic(count, vocab_size)
    start = time.process_time()
    KeyIndex.from_token_ids(ids, vocab_size=vocab_size)
    took = time.process_time() - start
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"{count:,} keys of {len(ids.flat):,} tokens in {took:.1f} s CPU, "
        f"{count / took / 1e6:.2f} Mkeys/s, {len(ids.flat) / took / 1e6:.1f} Mtokens/s; "
        f"given {(ids.flat.nbytes + ids.offsets.nbytes) / 1e9:.2f} GB, peak {most / 1e9:.2f} GB"
    )


def main() -> None:
    """Read the corpus, and print every table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_data_option(parser)
    parser.add_argument("--documents", type=int, default=1500)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--synthetic", type=int, default=1_000_000)
    parser.add_argument("--trie", type=int, default=50_000, help="keys of the trie and of masks")
    parser.add_argument("--peak", type=int, help="keys of which to measure the memory alone")
    options = parser.parse_args()
    if options.peak:
        peak(options.peak, options.vocabulary)
        return
    print(
        "| keys | keys | tokens | build (s) | Mkeys/s | Mtokens/s | bytes a token "
        f"| sources, bytes a key | {BEAMS} beams, depth 0 to {DEPTHS - 1}, first/again (ms) |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for vocab_size in (32_000, 150_000):
        drawn = synthetic(options.synthetic, vocab_size)
        index = report(f"synthetic, {vocab_size // 1000}k", drawn, vocab_size, "keys")
    loading(index)
    source = options.data / "e_wikispeedia" / "wikispeedia.corpus.jsonl.gz"
    if not source.exists():
        print(f"{source} is not there: no real text")
        return
    pages = [row for row, _ in zip(rows(source), range(options.documents), strict=False)]
    paragraphs = [text for page in pages for text in page["paragraphs"] if text.strip()]
    sentences = [s for text in paragraphs for s in SENTENCE_END.split(text) if s.strip()]
    tokenizer = WordPieces(paragraphs, options.vocabulary)
    by_paragraph = flatten(tokenizer.encode(f" {text}") for text in paragraphs)
    by_sentence = flatten(tokenizer.encode(f" {text}") for text in sentences)
    report("sentences", by_sentence, tokenizer.vocab_size, "keys")
    report("paragraphs", by_paragraph, tokenizer.vocab_size, "substring")
    report("paragraphs", by_paragraph, tokenizer.vocab_size, "fm")
    trie(by_sentence, options.trie)
    few = [by_sentence[place] for place in range(min(options.trie, len(by_sentence)))]
    some = KeyIndex.from_token_ids(few, vocab_size=tokenizer.vocab_size)
    masks(some, flatten(few), tokenizer, sentences[: len(few)])


if __name__ == "__main__":
    main()
