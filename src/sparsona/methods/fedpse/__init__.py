"""FedPSE: the method and the correlations that its downlink uses."""
