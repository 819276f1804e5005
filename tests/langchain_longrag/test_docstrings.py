"""Each component's docstring has an example, and it runs after the lines of the package's own."""

import inspect
import re
import textwrap

import pytest

import langchain_longrag
from longrag.errors import InvalidParameterError
from tests.langchain_longrag.reading import writing
from tests.langchain_longrag.refinement.test_compressors import WordWeigher

_BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)

# What describes a vector store, or names the settings of a chain, is no component.
OTHERS = {"StoreKind", "register_store", "ReaderSettings"}
COMPONENTS = sorted(set(langchain_longrag.__all__) - OTHERS)
SCRIPT = " keyword: age of the weir << It was built in 1312. >>\nanswer: 1312"


def blocks(thing):
    return [textwrap.dedent(code) for _, code in _BLOCK.findall(inspect.getdoc(thing))]


@pytest.fixture
def names():
    """Give the names of the package's example, and the models whose weights are not at hand."""
    (first,) = blocks(langchain_longrag)
    found = {"language_model": writing(lambda question: SCRIPT), "model": WordWeigher()}
    exec(first, found)
    return found


@pytest.mark.parametrize("name", COMPONENTS)
def test_the_example_of_a_component_runs(name, names):
    component = getattr(langchain_longrag, name)
    names[name] = component
    (code,) = blocks(component)
    assert re.search(rf"\b{name}\b", code)
    assert re.search(r"^assert ", code, re.MULTILINE)
    exec(code, names)


def test_an_example_that_is_wrong_fails(names):
    names["MaxPRetriever"] = langchain_longrag.MaxPRetriever
    (code,) = blocks(langchain_longrag.MaxPRetriever)
    with pytest.raises(InvalidParameterError, match="k must be"):
        exec(code.replace("k=1", "k=0"), names)
