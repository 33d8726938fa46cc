# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of tutorials: commands, what the page promises about their output, and how they run in one shell."""

from __future__ import annotations

import pytest

from tools.tutorials import PAGES, ROOT, TutorialStep, read_steps, run_steps

PAGE = """# A page

```sh
export NAME=web
echo "$NAME is there"
```

It prints:

```text
web is there
```

## 2. Again

```sh
echo changed=0; echo "$NAME"
```

The recap shows `changed=0` for `web`, and "web" is one line.
"""


def test_steps_of_a_page():
    assert read_steps(PAGE) == [
        TutorialStep('export NAME=web\necho "$NAME is there"\n', ("web is there",)),
        TutorialStep('echo changed=0; echo "$NAME"\n', ("changed=0", "web"))]


@pytest.mark.parametrize("name", PAGES)
def test_each_tutorial_begins_with_quickstart_and_removes_everything(name):
    steps = read_steps((ROOT / f"docs/start/{name}.md").read_text())
    assert steps[0].commands.startswith("./quickstart") and steps[-1].commands == "./quickstart --down --all\n"
    assert sum(len(step.promises) for step in steps) > 0


def test_all_tutorials_run():
    assert {path.stem for path in (ROOT / "docs/start").glob("*.md")} == set(PAGES)


def test_one_shell_keeps_variables_and_tells_what_is_not_as_promised(tmp_path, capsys):
    assert run_steps(read_steps(PAGE), tmp_path) == []
    assert "web is there" in capsys.readouterr().out
    steps = [*read_steps(PAGE.replace("changed=0;", "changed=1;")), TutorialStep("false\n", ()), TutorialStep("", ())]
    missing, ended = run_steps(steps, tmp_path)
    assert missing == "step 2 does not print 'changed=0'"
    assert ended.startswith("step 3 ended with status 1; ./quickstart --down")
