"""A data set of Hugging Face: pictures that ``datasets`` saved, with a client for each writer."""

import datasets
import numpy as np
from sklearn.datasets import load_digits

import sparsona

digits = load_digits()
features = datasets.Features(
    {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=[str(digit) for digit in range(10)]),
        "client": datasets.Value("string"),
    }
)
pictures = datasets.Dataset.from_dict(
    {
        "image": [np.uint8(picture * 15.9) for picture in digits.images[:600]],
        "label": digits.target[:600].tolist(),
        "client": [f"writer {i // 100}" for i in range(600)],
    },
    features=features,
)
pictures.save_to_disk("digits-by-writer")

recipe = {
    "name": "writers",
    "rounds": 5,
    "data": {"source": "digits-by-writer"},
    "model": {"name": "digits-cnn"},
    "method": {"name": "fedavg", "lr": 0.1, "batch": 16, "epochs": 2},
    "engine": {"name": "local"},
}
run = sparsona.run(sparsona.check_recipe(recipe))
print(
    f"{len(run.client_names)} clients, {', '.join(run.client_names[:2])}, ...: {run.summary['accuracy']:.1%} accuracy"
)
