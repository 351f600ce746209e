"""scrub: no byte is left in the files of what was erased."""

from __future__ import annotations

from cellfeed.cli.instance import DEFAULT_RUN_DIR, ConfigOption, RunDirOption, config_of
from cellfeed.cli.output import JsonOption, console, errors, print_json
from cellfeed.run_dir import RunDir
from store.engines.sqlite_scrub import scrub_files
from store.errors import InvalidRequest


def scrub(config: ConfigOption = None, run_dir: RunDirOption = DEFAULT_RUN_DIR, as_json: JsonOption = False) -> None:
    """Write the files of an embedded datastore anew, without what was erased or trimmed. The instance has to be down.

    It takes the room of the largest file once more, and some seconds a gigabyte. It may be killed, and run again. For a datastore on clusters the steps are in
    docs/operators.md, "Erasing a row".
    """
    settings = config_of(run_dir, config)
    if settings.datastore.clusters:
        raise InvalidRequest('a datastore on clusters is scrubbed server by server, see docs/operators.md, "Erasing a row"')
    with errors.status("writing the files anew"):
        scrubbed = scrub_files(RunDir(run_dir).inside(settings.datastore.directory) / settings.datastore.name)
    if as_json:
        print_json({"scrubbed": [str(path) for path in scrubbed]})
    else:
        for path in scrubbed:
            console.print(f"{path} is written anew", highlight=False)
