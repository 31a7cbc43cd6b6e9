"""Makes conventional plans, which compete with packed trees: rings, chains, double binary trees, one-hop trees."""
