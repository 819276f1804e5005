"""Where a model's name, URL and key come from, and where they never come from."""

import argparse
import sys

import pytest

from longrag.cli.model_settings import ModelSettings, find_settings, serve
from longrag.errors import InvalidParameterError, MissingExtraError

URL = "http://localhost:11434/v1"
KEY = "sk-secret-0123456789"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A user's home, and a current folder that somebody else wrote a file into."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "longrag.toml").write_text('model = "trap"\nbase_url = "https://trap.example/v1"\n')
    (here / "longrag").mkdir()
    (here / "longrag" / "longrag.toml").write_text((here / "longrag.toml").read_text())
    monkeypatch.chdir(here)
    for name in ("LONGRAG_MODEL", "LONGRAG_BASE_URL", "LONGRAG_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr("os.name", "posix")
    return tmp_path


def options(config=None, **given):
    names = ("model", "base_url", "api_key_env", "timeout")
    return argparse.Namespace(**dict.fromkeys(names) | given, model_config=config)


def write(folder, text):
    folder.mkdir(parents=True)
    (folder / "longrag.toml").write_text(text)


TOML = f'model = "filed"\nbase_url = "{URL}"\napi_key_env = "FILED_KEY"\ntimeout = 20\n'
FILED = ModelSettings(model="filed", base_url=URL, api_key_env="FILED_KEY", timeout=20)


@pytest.mark.parametrize("xdg", ["", "relative", "."])
def test_the_current_folder_is_never_read(monkeypatch, xdg):
    monkeypatch.setenv("XDG_CONFIG_HOME", xdg)
    assert find_settings(options()) is None


def test_the_users_file_is_read(home, monkeypatch):
    write(home / ".config" / "longrag", TOML)
    assert find_settings(options()) == FILED
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "other"))
    assert find_settings(options()) is None
    write(home / "other" / "longrag", TOML.replace("filed", "other"))
    assert find_settings(options()).model == "other"


def test_a_file_that_is_named_is_read_in_place_of_it(home):
    write(home / ".config" / "longrag", "broken")
    (home / "named.toml").write_text(TOML)
    assert find_settings(options(str(home / "named.toml"))) == FILED
    assert find_settings(options("longrag.toml")).model == "trap"


def test_the_command_goes_before_the_environment_and_that_before_the_file(home, monkeypatch):
    write(home / ".config" / "longrag", TOML)
    monkeypatch.setenv("LONGRAG_MODEL", "set")
    assert find_settings(options()) == ModelSettings(
        model="set", base_url=URL, api_key_env="FILED_KEY", timeout=20
    )
    found = find_settings(options(model="said", timeout=3.5))
    assert (found.model, found.timeout) == ("said", 3.5)


def test_a_key_goes_only_to_the_server_it_was_named_with(home, monkeypatch):
    write(home / ".config" / "longrag", TOML)
    elsewhere = "https://elsewhere.example/v1"
    assert find_settings(options(base_url=elsewhere)).api_key_env is None
    monkeypatch.setenv("LONGRAG_BASE_URL", elsewhere)
    assert find_settings(options()).api_key_env is None
    monkeypatch.setenv("LONGRAG_API_KEY", KEY)
    assert find_settings(options()).api_key_env == "LONGRAG_API_KEY"
    assert find_settings(options(base_url=URL)).api_key_env is None
    assert find_settings(options(base_url=URL, api_key_env="MINE")).api_key_env == "MINE"
    assert find_settings(options(api_key_env="MINE")).base_url == elsewhere


@pytest.mark.parametrize("empty", ["LONGRAG_MODEL", "LONGRAG_BASE_URL", "LONGRAG_API_KEY"])
def test_a_variable_that_is_empty_is_not_set(monkeypatch, empty):
    monkeypatch.setenv(empty, "")
    assert find_settings(options()) is None


def test_a_key_alone_names_no_model(monkeypatch):
    monkeypatch.setenv("LONGRAG_API_KEY", KEY)
    assert find_settings(options()) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "m"}, "Give the URL of a server with OpenAI's protocol by --base-url"),
        ({"base_url": URL}, "Name a model that the server has"),
        ({"timeout": 3.0}, "Name a model that the server has"),
        ({"model": "", "base_url": URL}, "model must be a text, got ''"),
    ],
)
def test_settings_that_are_not_whole_are_refused(given, message):
    with pytest.raises(InvalidParameterError) as refused:
        find_settings(options(**given))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'api_key = "{KEY}"\n', "Put the key into an environment variable"),
        ('modell = "m"\n', "Did you mean 'model'?"),
        ('timeout = "long"\n', "timeout must be a number, got 'long'"),
        ("timeout = true\n", "timeout must be a number, got True"),
        ("model = 3\n", "model must be a text, got 3"),
        ("[model]\n", "model must be a text, got {}"),
        ("model: m\n", "config must be a file of TOML"),
        ("\0", "config must be a file of TOML"),
    ],
)
def test_a_bad_file_is_refused_without_what_may_be_a_key(home, text, message):
    write(home / ".config" / "longrag", text)
    with pytest.raises(InvalidParameterError) as refused:
        find_settings(options(model="m", base_url=URL))
    assert message in str(refused.value)
    assert KEY not in str(refused.value)


def test_a_file_that_is_not_there_or_cannot_be_read(home):
    for name in ("nowhere.toml", "."):
        with pytest.raises(InvalidParameterError, match="config must be a file of TOML"):
            find_settings(options(name))
    (home / "bad.toml").write_bytes(b'model = "\xff"')
    with pytest.raises(InvalidParameterError, match="config must be a file of TOML"):
        find_settings(options(str(home / "bad.toml")))


def settings(**given):
    return ModelSettings(**{"model": "m", "base_url": URL, **given})


@pytest.mark.parametrize("name", [KEY, "NOT_SET", "AKIAIOSFODNN7EXAMPLE", ""])
def test_a_key_in_place_of_its_name_is_not_shown(name):
    with pytest.raises(InvalidParameterError, match="environment variable that is set") as refused:
        serve(settings(api_key_env=name), {})
    assert ("NOT_SET" in str(refused.value)) == (name == "NOT_SET")
    assert not name or name == "NOT_SET" or name not in str(refused.value)


@pytest.mark.parametrize("key", [f"{KEY}\nX: y", f"{KEY}ü", f"two {KEY}", " "])
def test_a_key_that_cannot_be_sent_is_not_shown(monkeypatch, key):
    monkeypatch.setenv("THE_KEY", key)
    with pytest.raises(InvalidParameterError, match="THE_KEY must be a key") as refused:
        serve(settings(api_key_env="THE_KEY"), {})
    assert KEY not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({"base_url": "localhost:8000"}, {}, "base_url must be the URL of a server"),
        ({"base_url": "ftp://localhost/v1"}, {}, "base_url must be the URL of a server"),
        ({"base_url": "http://localhost:99999/v1"}, {}, "a URL that cannot be read"),
        ({"base_url": "http://a b/v1"}, {}, "base_url must be the URL of a server"),
        ({"base_url": "http://*..ü/v1"}, {}, "Invalid IDNA hostname"),
        ({"base_url": f"http://u:{KEY}@localhost/v1"}, {}, "got a URL with a user"),
        ({"base_url": f"u:{KEY}@localhost/v1"}, {}, "got a URL with a user"),
        ({"base_url": f"http://localhost/v1?key={KEY}"}, {}, "got a URL with a query"),
        ({"timeout": 0}, {}, "timeout must be a positive number of seconds"),
        ({"timeout": float("nan")}, {}, "timeout must be a positive number of seconds"),
        ({"timeout": float("inf")}, {}, "at most 86,400 (a day), got inf"),
        ({"timeout": 1e10}, {}, "at most 86,400 (a day), got 10000000000.0"),
        ({}, {"stream": False}, "llm-options must be a field that is not set anyway, got 'stream'"),
    ],
)
def test_bad_settings_are_refused(given, options, message):
    with pytest.raises(InvalidParameterError) as refused:
        serve(settings(**given), options)
    assert message in str(refused.value)
    assert KEY not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("http://gpu.example/v1", True),
        ("http://192.168.1.9:8000/v1", True),
        ("http://localhost.example/v1", True),
        ("https://gpu.example/v1", False),
        ("http://localhost:8000/v1", False),
        ("http://127.0.0.2/v1", False),
        ("http://[::1]:8000/v1", False),
    ],
)
def test_a_key_without_encryption_is_warned_of(monkeypatch, capsys, url, warned):
    monkeypatch.setenv("THE_KEY", KEY)
    model = serve(settings(base_url=url, api_key_env="THE_KEY"), {})
    expected = f"warning: the key of THE_KEY is sent to {url} without encryption\n"
    assert capsys.readouterr().err == (expected if warned else "")
    assert KEY not in repr(model) + model.name
    serve(settings(base_url=url), {})
    assert capsys.readouterr().err == ""


def test_the_name_holds_what_changes_the_answers():
    assert serve(settings(), {"b": 1, "a": 0}).name == f'm at {URL} with {{"a": 0, "b": 1}}'


def test_without_httpx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'longrag\[served\]'"):
        serve(settings(), {})
