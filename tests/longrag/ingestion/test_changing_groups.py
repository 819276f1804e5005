"""Groups that follow changes are those of one build from what there is."""

import random

import pytest

from longrag.ingestion.builder import UnitBuilder
from longrag.ingestion.changing_groups import ChangingGroups
from longrag.ingestion.cuts import DocumentCutter, write_group
from longrag.types import Document

IDS = (
    "p{}.md",
    "a/p{}.md",
    "http://x.org/a/p{}",
    "a/index.md",
    "http://x.org/v?id={}",
    "b/README.md",
)
TARGETS = (*IDS, "../p{}.md", "Title {}", "/a/p{}.html", "P{}.MD", "a/", "b/b", "p{}.md#part", "#")


def page(draw: random.Random) -> Document:
    """A page of few ids, titles and targets, so that names often are another's."""
    links = [draw.choice(TARGETS).format(draw.randrange(40)) for _ in range(draw.randrange(5))]
    text = " ".join(f"[x]({target})" for target in links) + " word" * draw.randrange(30)
    metadata = {"path": f"c/p{draw.randrange(9)}"} if draw.random() < 0.1 else {}
    id_ = draw.choice(IDS).format(draw.randrange(40))
    return Document(id_, text, f"Title {draw.randrange(40)}", metadata)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("granularity", ["chunk", "document", "unit"])
@pytest.mark.parametrize("seed", range(10))
def test_after_each_change_units_and_chunks_are_those_of_one_build(seed, granularity, split):
    draw = random.Random(seed)
    builder = UnitBuilder(
        max_tokens=60,
        chunk_size=12,
        split_oversized=split,
        granularity=granularity,
        link_rules=[lambda target, _: "Title 7" if target == "b/b" else None],
    )
    groups, cutter = ChangingGroups(builder), DocumentCutter(builder)
    there, cuts = {}, {}
    for _ in range(12):
        new = {one.id: one for one in (page(draw) for _ in range(draw.randrange(8)))}
        gone = [id_ for id_ in there if draw.random() < 0.15 and id_ not in new]
        cut = {id_: cutter.cut(one) for id_, one in new.items()}
        groups.change([*(id_ for id_ in there if id_ in new), *gone], cut)
        there = {id_: one for id_, one in {**there, **new}.items() if id_ not in gone}
        cuts |= cut
        units, chunks = [], []
        for ids in groups.groups():
            written = write_group([there[i] for i in ids], [cuts[i] for i in ids], granularity)
            units += written[0]
            chunks += written[1]
        assert (units, chunks) == builder.build(list(there.values()))
