"""What the site has beyond the files in docs/: reference pages that are made from the code when it
is built, and links to files of the repository, which are not pages.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
RESULTS = "benchmarks/results/README.md"
sys.path.insert(0, str(ROOT))
_OUTSIDE = re.compile(r"(!?)\[([^\]]*)\]\((\.\./[^)#]+)(?:#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Completes the menu: pages that it leaves out, and every decision."""
    assert config.nav is not None
    sections: dict[str, list[Any]] = {
        name: pages for each in config.nav if isinstance(each, dict) for name, pages in each.items()
    }
    named = {"index.md", *(page for pages in sections.values() for page in pages)}
    found = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    sections["Run"] += [page for page in found if page not in named]
    decisions = sorted(path.name for path in (ROOT / "docs" / "adr").glob("0*.md"))
    sections["Understand"].append(
        {"Decisions": [f"adr/{name}" for name in ("README.md", *decisions)]}
    )
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the reference."""
    for name, text in reference().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A link to a file of the repository becomes its path; a picture is shown as it is.

    Raises:
        PluginError: there is no such file.
    """
    folder = (ROOT / "docs" / page.file.src_path).parent
    markdown = markdown.replace(f"../{RESULTS}", "reference/results.md")

    def told(found: re.Match[str]) -> str:
        picture, text, target = found.groups()
        path = (folder / target).resolve()
        if path.is_relative_to(ROOT / "docs"):
            return found[0]
        if not path.exists() or not path.is_relative_to(ROOT):
            raise PluginError(f"{page.file.src_path} links to {target}, which is not there")
        if picture:
            return path.read_text(encoding="utf-8")
        shown = path.relative_to(ROOT).as_posix()
        return f"`{shown}`" if text == shown else f"{text} (`{shown}`)"

    return _OUTSIDE.sub(told, markdown)


def reference() -> dict[str, str]:
    """Pages by name."""
    return {
        "commands": commands(),
        "http": routes(),
        "settings": settings(),
        "playbook": playbook(),
        "cluster-keys": cluster_keys(),
        "results": (ROOT / RESULTS).read_text().replace("../../docs/", "../"),
    }


def commands() -> str:
    """Every command's help."""
    from typer.main import get_command

    from imbrex.cli.app import app

    parts = ["# Commands", "", "What `--help` says of each.", ""]
    for path, command in _commands(get_command(app), ("imbrex",)):
        context = command.make_context(path[-1], ["--help"], resilient_parsing=True)
        context.info_name = " ".join(path)
        context.max_content_width = 96
        context.terminal_width = 96
        parts += [
            f"## {' '.join(path)}",
            "",
            "```text",
            command.get_help(context).strip(),
            "```",
            "",
        ]
    return "\n".join(parts)


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command


def routes() -> str:
    """Every route of our own interface, from the OpenAPI document."""
    import tempfile

    from coordinator.service import Coordinator
    from coordinator.serving.app import create_app
    from coordinator.settings import CoordinatorSettings

    with tempfile.TemporaryDirectory() as folder:
        settings = CoordinatorSettings(state_dir=Path(folder), mdns=False, host_computes=False)
        document = create_app(Coordinator(settings)).openapi()
    parts = [
        "# HTTP",
        "",
        "The native interface; a coordinator's `/openapi.json` has every detail, and `/docs` shows "
        "it. The Open Inference Protocol and DeepStack's interface follow their specifications: "
        "see [Integrations](../serving.md).",
        "",
    ]
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            parts += [f"## {method.upper()} `{path}`", "", told.get("description", ""), ""]
            parts += _parameters(told.get("parameters", []))
    return "\n".join(parts)


def _parameters(found: list[dict[str, Any]]) -> list[str]:
    if not found:
        return []
    rows = [
        f"| `{each['name']}` | {each['in']} | {each.get('description', '')} |" for each in found
    ]
    return ["| parameter | in | |", "|---|---|---|", *rows, ""]


def cluster_keys() -> str:
    """Every key of a cluster file, by section, from the parser."""
    from coordinator.planning import cluster_file as schema

    sections: dict[str, Any] = {
        "`[network]`": schema.NetworkTable,
        "`[host]`": schema.Host,
        "`[[device]]`": schema.DeviceEntry,
        "`gflops` and others, of `[host]` and `[[device]]`": schema.ComputerTable,
        "`[[host.engine]]` and `[[device.engine]]`": schema.EngineTable,
        "`rate_1x1` and others, of all of these": schema.RatesTable,
        "`[device.limits]` and `[host.limits]`": schema.Limited,
        "`endpoint_` keys, of `[host]`, `[host.worker]` and `[[device]]`": schema.End,
    }
    parts = ["# Keys of cluster files", "", "See [Cluster files](../cluster-files.md).", ""]
    for title, section in sections.items():
        parts += [f"## {title}", "", "| key | default | |", "|---|---|---|"]
        for name in section.__annotations__:  # its own; those that it shares have their table
            field = section.model_fields[name]
            default = "" if field.default is None else f"`{json.dumps(field.default, default=str)}`"
            default = "required" if field.is_required() else default
            parts.append(f"| `{name}` | {default} | {field.description} |")
        parts.append("")
    return "\n".join(parts)


def playbook() -> str:
    """Every variable of the inventory, from what the roles declare."""
    parts = ["# Variables of the playbook", "", "What an inventory may set, by role.", ""]
    for file in sorted((ROOT / "deploy" / "ansible" / "roles").glob("*/meta/argument_specs.yml")):
        role = yaml.safe_load(file.read_text())["argument_specs"]["main"]
        parts += [f"## {file.parent.parent.name}", "", f"{role['short_description']}.", ""]
        parts += ["| variable | type | default | |", "|---|---|---|---|"]
        for name, option in role["options"].items():
            lines = option["description"]
            about = " ".join(lines) if isinstance(lines, list) else lines
            about = re.sub(r"[CI]\((.*?)\)", r"`\1`", about).strip()
            default = json.dumps(option.get("default"), ensure_ascii=False)
            parts.append(f"| `{name}` | {option['type']} | `{default}` | {about} |")
        parts.append("")
    return "\n".join(parts)


def settings() -> str:
    """Every setting of both daemons, with its default."""
    from coordinator.settings import CoordinatorSettings
    from worker.settings import WorkerSettings

    parts = [
        "# Settings",
        "",
        "From flags, else the environment (the prefix and the name in capitals; a list has commas, "
        "or is JSON), else the TOML file that `--config` names.",
        "",
    ]
    for title, kind in (("Coordinator", CoordinatorSettings), ("Worker", WorkerSettings)):
        parts += [f"## {title}", "", f"`{kind.prefix()}*`", ""]
        parts += ["| setting | type | default | |", "|---|---|---|---|"]
        for name, field in kind.model_fields.items():
            shown = str(field.annotation).replace("<class '", "").replace("'>", "")
            shown = re.sub(r"\b(typing|pathlib|coordinator[\w.]*|worker[\w.]*)\.", "", shown)
            default = "by the system"
            if field.default_factory is None and name != "state_dir":
                default = repr(field.default)
            told = (field.description or "").replace("|", "or")
            parts.append(f"| `{name}` | `{shown.replace('|', 'or')}` | `{default}` | {told} |")
        parts.append("")
    return "\n".join(parts)
