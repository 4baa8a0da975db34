"""DA-DPFL: the method, and how it prunes."""
