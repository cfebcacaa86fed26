"""An IPython shell without a kernel: it runs a notebook's cells and returns their outputs, bounded in size."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.text import LSString, SList

from ..wire.protocol import MAX_LINES, MAX_MIME, MAX_NAME, MAX_OUTPUTS, MAX_SHOWN, MAX_TEXT, MIME_TYPES

os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")


class Recorder:
    """A cell's outputs, in order, in the notebook format. `relayed`: those that a function of the student's printed."""

    def __init__(self) -> None:
        self.outputs: list[dict] = []
        self.relayed: list[dict] = []
        self.room = MAX_TEXT
        self.room_shown = MAX_SHOWN

    def write(self, name: str, text: str, relayed: bool = False) -> None:
        """Add text to stdout or stderr; beyond `MAX_TEXT` characters, cut it off with a note.

        `relayed`: a student's function printed it, and not the cell that called the function.
        """
        if self.room <= 0 or not text:
            return
        if len(text) > self.room:
            text = text[: self.room] + "\n[cut off: too much output]\n"
        self.room -= len(text)
        last = self.outputs[-1] if self.outputs else {}
        of_the_same = relayed == any(last is each for each in self.relayed[-1:])
        if last.get("output_type") == "stream" and last["name"] == name and of_the_same:
            last["text"] += text
            return
        output = {"output_type": "stream", "name": name, "text": text}
        self.add(output)
        if relayed:
            self.relayed.append(output)

    def show(self, kind: str, data: dict, count: int | None = None) -> None:
        """Add a display, or the value of a cell's last expression, in the mime types that a page shows."""
        texts = {mime: data[mime] for mime in MIME_TYPES if isinstance(data.get(mime), str)}
        shown = {mime: text for mime, text in texts.items() if len(text) <= MAX_MIME}
        if not shown:
            return
        self.room_shown -= sum(map(len, shown.values()))
        if self.room_shown < 0:
            self.write("stdout", "[left out: a display that is too large, after the others of this cell]\n")
            return
        output = {"output_type": kind, "data": shown, "metadata": {}}
        self.add(output | ({"execution_count": count} if kind == "execute_result" else {}))

    def add(self, output: dict) -> None:
        """Add an output, unless there are `MAX_OUTPUTS` already."""
        if len(self.outputs) < MAX_OUTPUTS:
            self.outputs.append(output)

    def error(self, name: str, words: str, traceback: list[str]) -> None:
        """Add an error; it always fits, in place of the last output if need be."""
        lines = "\n".join(traceback)[-MAX_TEXT:].split("\n")[-MAX_LINES:]
        output = {"output_type": "error", "ename": name[:MAX_NAME], "evalue": words[:MAX_TEXT], "traceback": lines}
        others = [each for each in self.outputs if each["output_type"] != "error"]
        self.outputs = [*others[: MAX_OUTPUTS - 1], output]


class _Stream(io.TextIOBase):
    """A stdout or stderr that writes into the shell's recorder."""

    encoding = "utf-8"

    def __init__(self, shell: Shell, name: str):
        self.shell, self.name = shell, name

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.shell.recorder.write(self.name, text)
        return len(text)

    def relay(self, text: str) -> None:
        """Write what a student's function printed."""
        self.shell.recorder.write(self.name, text, relayed=True)


class _Publisher(DisplayPublisher):
    def publish(self, data: dict, metadata: dict | None = None, source: Any = None, **_: Any) -> None:
        self.shell.recorder.show("display_data", data)


class _Hook(DisplayHook):
    """A hook that records the value of a cell's last expression."""

    shell: Shell

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, data: dict, metadata: dict | None = None) -> None:
        self.shell.recorder.show("execute_result", data, self.shell.execution_count)

    def finish_displayhook(self) -> None:
        pass


class Shell(InteractiveShell):
    """A shell whose cells leave their outputs in `recorder`."""

    display_pub_class = _Publisher
    displayhook_class = _Hook

    def __init__(self, **options: Any):
        self.recorder = Recorder()
        super().__init__(**options)
        assert self.history_manager is not None  # `init_history` made it
        self.history_manager.enabled = False
        self.streams = _Stream(self, "stdout"), _Stream(self, "stderr")

    def init_history(self) -> None:
        from traitlets.config import Config

        self.config.merge(Config({"HistoryManager": {"enabled": False, "hist_file": ":memory:"}}))
        super().init_history()

    def system(self, command: str) -> None:
        """Run a shell command, as for `!ls`, without a terminal."""
        self.recorder.write("stdout", self._output(self.var_expand(command, depth=1)))

    def getoutput(self, command: str, split: bool = True, depth: int = 0) -> Any:
        """Return what a shell command prints, as for `files = !ls`."""
        text = self._output(self.var_expand(command, depth=depth + 1))
        return SList(text.splitlines()) if split else LSString(text)

    def _output(self, command: str) -> str:
        process = subprocess.run(
            command,
            shell=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.user_ns["_exit_code"] = process.returncode
        return process.stdout

    def enable_gui(self, gui: Any = None) -> None:
        """Do nothing: there are no windows here, and figures are drawn in the notebook."""

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> bool:
        """Run a statement of a cell; return whether the cell ends there.

        A check that refuses when graded doesn't end it: the answers below it count, as they do in a notebook.
        """
        failed = await super().run_code(code_obj, result, async_=async_)
        checks = sys.modules.get("collectives.practice.checks")
        return failed and not (checks and result and isinstance(result.error_in_exec, checks.LibraryUsed))

    def _showtraceback(self, kind: type, error: BaseException, traceback: list[str]) -> None:
        lines = traceback if isinstance(traceback, list) else [str(traceback)]
        self.recorder.error(kind.__name__, str(error), lines)

    def run(self, source: str, name: str) -> list[dict]:
        """Run a cell; return its outputs. `name`: its name in tracebacks."""
        self.recorder = Recorder()
        with self.printing():
            self.run_cell(source, store_history=False, cell_id=name)
        return self.recorder.outputs

    @contextlib.contextmanager
    def printing(self) -> Any:
        """Record everything printed within the `with` block."""
        with contextlib.redirect_stdout(self.streams[0]), contextlib.redirect_stderr(self.streams[1]):
            yield


@functools.cache
def make_shell() -> Shell:
    """Return the shell, with its namespace as the module `__main__` and, if installed, matplotlib's figures inline."""
    shell = Shell.instance()
    sys.modules["__main__"] = shell.user_module
    shell.user_module.__name__ = "__main__"
    with contextlib.suppress(ImportError):
        shell.enable_matplotlib("inline")
    return shell


def lay_out(files: dict[str, bytes]) -> None:
    """Write the exercise's files into the working directory."""
    for name, data in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(data)
