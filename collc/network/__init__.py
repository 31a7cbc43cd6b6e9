"""The network of this machine: its interfaces, the choice among them, and connections that authenticate both ends."""
