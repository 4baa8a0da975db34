"""From a recipe to finished runs: schema, plan, runner, records."""
