"""What several claims share: tasks, clusters, published figures, two hosts on one machine.

May import what `hocket.reproduce` may, but no claim.
"""
