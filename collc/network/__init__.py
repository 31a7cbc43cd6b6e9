"""This machine's network: its interfaces, the one that is used, and connections whose ends prove who they are."""
