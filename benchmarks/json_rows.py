"""Writes results as JSON in which each row of a table is one line."""

import json
from collections.abc import Mapping
from typing import Any


def dumps(report: Mapping[str, Any]) -> str:
    """Returns the JSON of a report, with a line for each item of its lists of objects."""

    def of_value(value: Any) -> str:
        if not (isinstance(value, list) and value and isinstance(value[0], dict)):
            return json.dumps(value)
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"

    items = [f"{json.dumps(name)}: {of_value(value)}" for name, value in report.items()]
    return "{\n" + ",\n".join(items) + "\n}\n"
