"""`gcr devices`: the devices gcr can see."""

from collections.abc import Sequence

import click

from gcr import units
from gcr.api.listings import DeviceInfo
from gcr.cli import text
from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import print_json, print_text, success
from gcr.names import DEFAULT_BACKEND


@click.command("devices", epilog=examples("gcr devices", "gcr devices --backend nvidia --json"))
@common_options
@click.pass_obj
def command(options: Options) -> None:
    """List devices by UUID, with their memory and how much of it is in use by their own count."""
    rows = present(options.backend)
    if options.json:
        print_json(success("devices", {"devices": [row.to_json() for row in rows]}))
    else:
        print_text(_render(rows) if rows else _none(options.backend))


def present(wanted: str | None) -> list[DeviceInfo]:
    """A row a device that this process sees. Raises BackendMissing."""
    from gcr.cli import vendors
    from gcr.devices import is_simulated

    return [
        DeviceInfo(
            backend=backend.name,
            index=index,
            uuid=device.uuid,
            name=device.name,
            total_bytes=device.total_bytes,
            used_bytes=device.used_bytes,
            link=device.link,
            simulated=is_simulated(device.name),
        )
        for backend in vendors.chosen(wanted)[1]
        for index, device in enumerate(vendors.devices(backend, insist=wanted is not None))
    ]


def _none(asked: str | None) -> str:
    simulated = f"gcr run --simulate {asked or DEFAULT_BACKEND} -- gcr devices"
    return f"no devices; gcr doctor says why\nSIMULATED ones are seen from inside only: {simulated}"


def _render(devices: Sequence[DeviceInfo]) -> str:
    head = ("BACKEND", "#", "UUID", "NAME", "USED", "TOTAL", "LINK")
    return text.table(head, [_cells(device) for device in devices])


def _cells(device: DeviceInfo) -> tuple[str, ...]:
    used, total = units.size(device.used_bytes), units.size(device.total_bytes)
    return (device.backend, str(device.index), device.uuid, device.name, used, total, device.link or "-")
