"""The imperative shell: where methods run, and what is kept. Engines never name a method."""
