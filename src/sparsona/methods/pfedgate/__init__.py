"""pFedGate: the method, its gates, blocks and knapsack, and the models that it exports."""
