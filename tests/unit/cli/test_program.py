from __future__ import annotations

import re
import subprocess
import sys

import pytest
import typer

from tsbatch._version import __version__
from tsbatch.cli import program
from tsbatch.errors import BadRequest, LoadError, ServerError, SettingsError, UsageError


@pytest.fixture
def failing(monkeypatch):
    """A command line whose only verbs fail in the way that is asked for."""

    def build(error=None, result=None):
        app = typer.Typer(pretty_exceptions_enable=False)

        @app.command("work")
        def work(count: int = 1):
            if error is not None:
                raise error
            return result

        @app.command("rest")
        def rest():
            pass

        monkeypatch.setattr(program, "build_app", lambda: app)

    return build


def said(capsys):
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.err


def test_version(capsys):
    assert program.main(["--version"]) == program.FINE
    assert capsys.readouterr().out == f"tsbatch {__version__}\n"


def test_help_names_every_verb_in_its_panel(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert program.main([]) == program.FINE
    out = capsys.readouterr().out
    for panel, verbs in {
        "Develop": ["run"],
        "Archive": ["package", "handler-path"],
        "Server": ["serve", "stop", "register", "models", "scale", "unregister"],
    }.items():
        section = re.search(rf"─ {panel} ─.*?╰", out, re.DOTALL)
        assert section, f"no panel {panel}"
        assert all(re.search(rf"│ {verb} ", section[0]) for verb in verbs)


def test_every_verb_has_json_and_help_for_each_option():
    group = typer.main.get_command(program.build_app())
    verbs = [(name, command) for name, command in group.commands.items() if not hasattr(command, "commands")]
    verbs += [(f"ray {name}", command) for name, command in group.commands["ray"].commands.items()]
    for name, command in verbs:
        options = {option: param for param in command.params for option in param.opts}
        assert "--json" in options, f"{name} has no --json"
        assert all(param.help for param in command.params if param.name != "help"), f"{name} has an option without help"
        assert command.help, f"{name} has no help"


def test_help_loads_neither_torch_nor_the_server():
    code = (
        "import sys; from tsbatch.cli.program import main; main(['--help']); "
        "print([m for m in ('torch', 'transformers', 'ts', 'numpy') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_it_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "tsbatch", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"tsbatch {__version__}\n"


@pytest.mark.parametrize(
    "error,code",
    [
        (UsageError("a flag is wrong"), 2),
        (BadRequest("line 3 is no JSON"), 2),
        (LoadError("weights missing"), 3),
        (SettingsError("no such key"), 3),
        (ServerError("the worker died"), 3),
        (FileNotFoundError(2, "No such file or directory", "a.mar"), 2),
        (FileExistsError(17, "File exists", "logs"), 2),
        (OSError(36, "File name too long", "aaa"), 2),
        (OSError(28, "No space left on device", "a.mar"), 3),
        (ZeroDivisionError("division by zero"), 3),
        (typer.BadParameter("not a number"), 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_becomes_one_line_and_a_code(failing, capsys, error, code):
    failing(error)
    assert program.main(["work"]) == code
    lines = said(capsys).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("tsbatch: ")
    assert (getattr(error, "filename", None) or str(error)) in lines[0]


def test_a_usage_error_of_several_lines_becomes_one(failing, capsys):
    failing(UsageError("first\nsecond"))
    assert program.main(["work"]) == program.BAD_INPUT
    assert said(capsys) == "tsbatch: first second\n"


@pytest.mark.parametrize(
    "error,code", [(typer.Exit(1), 1), (typer.Exit(0), 0), (KeyboardInterrupt(), 130), (typer.Abort(), 130)]
)
def test_a_command_can_choose_its_code_and_be_stopped(failing, error, code):
    failing(error)
    assert program.main(["work"]) == code


def test_a_command_that_returns_nothing_was_fine(failing):
    failing()
    assert program.main(["work"]) == program.FINE


def test_an_unknown_verb_names_the_nearest(capsys):
    assert program.main(["pakage"]) == program.BAD_INPUT
    assert "'package'" in said(capsys)


@pytest.mark.parametrize("words", [["work", "--cuont", "2"], ["work", "--count", "many"], ["work", "extra"]])
def test_wrong_words_are_one_line_with_the_way_to_help(failing, capsys, words):
    failing()
    assert program.main(words) == program.BAD_INPUT
    error = said(capsys)
    assert error.count("\n") == 1
    assert "tsbatch work --help" in error


@pytest.mark.parametrize("module,extra", [("typer", "desk"), ("ts.version", "serve"), ("transformers", "transformers")])
def test_a_missing_extra_is_named_with_its_install_line(failing, capsys, module, extra):
    failing(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert program.main(["work"]) == program.BAD_INPUT
    assert f'pip install "tsbatch[{extra}]"' in said(capsys)


def test_without_the_desk_extra_the_install_line_is_all_there_is():
    code = (
        "import sys; sys.modules['typer'] = sys.modules['rich'] = None; "
        "from tsbatch.cli.program import main; sys.exit(main(['models']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == program.BAD_INPUT
    assert 'pip install "tsbatch[desk]"' in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_module_that_no_extra_brings_is_a_fault_of_ours(failing, capsys):
    failing(ModuleNotFoundError("No module named 'tsbatch.nothing'", name="tsbatch.nothing"))
    assert program.main(["work"]) == program.FAILED
    assert "a bug in tsbatch" in said(capsys)


def test_debug_shows_where(failing, capsys, monkeypatch):
    monkeypatch.setenv(program.DEBUG, "1")
    failing(ZeroDivisionError("division by zero"))
    assert program.main(["work"]) == program.FAILED
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error():
    code = "import sys; from tsbatch.cli.program import main; sys.exit(main(['--help']))"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    child.stdout.close()
    assert child.wait(60) == program.FINE
    assert child.stderr.read() == ""
    child.stderr.close()
