"""config check|show|schema: the configuration file, without starting anything."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
import yaml

from cellfeed.cli.instance import DEFAULT_RUN_DIR, ConfigOption, RunDirOption
from cellfeed.cli.output import JsonOption, console, print_json
from cellfeed.config.json_schema import config_schema
from cellfeed.config.model import Config
from cellfeed.instance.config_file import load_config
from cellfeed.kinds.known import process_names
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import NotFound
from cellfeed.store.secret_references import has_reference

_PASSWORD: Final = re.compile(r"(?<=://)([^/@:]*):[^@/]*(?=@)")
"""Of a URL such as ``mysql://user:password@host``."""

_SECRET: Final = re.compile(r"password|secret|credential|\.key\.pem|token", re.IGNORECASE)
"""Part of the name of a Kafka client's setting that is one."""

app = typer.Typer(
    no_args_is_help=True,
    help="The configuration file: check it, show the values in force, print its JSON Schema.",
)


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="The YAML configuration.")],
    as_json: JsonOption = False,
) -> None:
    """Check a configuration file, and list the processes that it starts. Starts nothing."""
    config = load_config(file)
    processes = process_names(config)
    if as_json:
        print_json(
            {
                "file": str(file),
                "datastore": config.datastore.name,
                "shards": config.datastore.shards,
                "processes": [{"name": name, "kind": kind} for name, kind in processes],
            }
        )
        return
    place = (
        f"in clusters {', '.join(cluster.name for cluster in config.datastore.clusters)}"
        if config.datastore.clusters
        else f"in directory {config.datastore.directory}"
    )
    kinds = Counter(kind for _, kind in processes)
    console.print(
        f"{file} is well: datastore {config.datastore.name} of {config.datastore.shards} shards"
        f" {place}; processes: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}",
        highlight=False,
    )


@app.command("show")
def show(
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Show a configuration with all defaults filled in, as `up` takes it: of --config, or of the
    run directory. Passwords in URLs, and those of Kafka clients, are hidden."""
    path = config or RunDir(run_dir).config
    if config is None and not path.exists():
        raise NotFound(
            f"{run_dir} is not the run directory of an instance; name it with --run-dir, or a"
            " configuration with --config"
        )
    shown = _without_passwords(_plain(load_config(path)))
    if as_json:
        print_json(shown)
    else:
        sys.stdout.write(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True))


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    text = msgspec.json.format(msgspec.json.encode(config_schema()), indent=2)
    sys.stdout.write(text.decode() + "\n")


def _plain(config: Config) -> Any:
    return msgspec.to_builtins(config)


def _is_secret(name: str, value: object) -> bool:
    """Whether a setting's value is a secret by its name, as ``sasl.password``, and stands there
    itself."""
    return isinstance(value, str) and _SECRET.search(name) is not None and not has_reference(value)


def _without_passwords(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: "***" if _is_secret(name, child) else _without_passwords(child)
            for name, child in value.items()
        }
    if isinstance(value, list):
        return [_without_passwords(child) for child in value]
    return _PASSWORD.sub(r"\1:***", value) if isinstance(value, str) else value
