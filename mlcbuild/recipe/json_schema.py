"""The JSON Schema of recipes, for editors: ``python -m mlcbuild.recipe.json_schema``."""

from __future__ import annotations

import json
import sys

from mlcbuild.recipe.schema import RecipeSchema


def json_schema() -> str:
    """The schema as indented, sorted JSON with a final line break."""
    schema = RecipeSchema.model_json_schema(by_alias=True)
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(json_schema())
