"""Next-character prediction on a text file, with a client for each speaker."""

from pathlib import Path

import sparsona

SPEECHES = {
    "ALICE": "the sea is calm tonight and the tide is full and the moon lies fair upon the straits. ",
    "BRUNO": "one two three four five six seven eight nine ten and then again from one to ten. ",
    "CLARA": "to market to market to buy a fat pig and home again home again jiggety jig. ",
}
lines = [f"{name}:\n{speech}\n" for _ in range(30) for name, speech in SPEECHES.items()]
Path("play.txt").write_text("\n".join(lines), encoding="utf-8")

recipe = {
    "name": "play",
    "rounds": 8,
    "data": {"source": "play.txt", "length": 40},
    "model": {"name": "char-cnn"},
    "task": {"metrics": ["perplexity", "accuracy"]},
    "method": {"name": "fedrep", "optimiser": "AdamW", "lr": 0.005},
    "engine": {"name": "local"},
}
run = sparsona.run(sparsona.check_recipe(recipe))
for row in (run.rounds[0], run.rounds[-1]):
    score = row["before"]
    print(f"round {row['round']}: perplexity {score['perplexity']:.1f}, {score['accuracy']:.0%} of characters right")
