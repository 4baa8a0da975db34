"""Watch a run while it trains, stop it when it is good enough, resume it, and look at its records with pandas."""

import sparsona

GOAL = 0.5


class GoodEnough(Exception):
    """The run reached its goal."""


def watch(step: sparsona.Progress) -> None:
    """Print the accuracy after every evaluation, and stop at the goal."""
    score = step.row.get("before")
    if score is not None:
        print(f"round {step.round} of {step.rounds}: {score['accuracy']:.1%}")
        if score["accuracy"] >= GOAL:
            raise GoodEnough


if __name__ == "__main__":
    changes = ["rounds=12", "data.clients=6", "fleet.per_round=3", "engine.name=local", "results.figures=false"]
    recipe = sparsona.load("quickstart", changes)["personal"]
    try:
        sparsona.run(recipe, "watched", on_round=watch)
    except GoodEnough:
        print("good enough; the rounds so far are saved")

    run = sparsona.resume("watched")  # the rest, bit-identical to a run that was never stopped
    rounds = run.to_pandas()  # a row per round, with columns such as before.accuracy and total.up
    clients = run.to_pandas("clients")  # a row per client and round
    print(rounds[["round", "before.accuracy", "total.up"]].tail(3).to_string(index=False))
    last = clients[clients["round"] == run.recipe.rounds].set_index("client")
    accuracy = last["before.correct"] / last["before.samples"]
    print(f"best client: {accuracy.idxmax()}, worst client: {accuracy.idxmin()}")
