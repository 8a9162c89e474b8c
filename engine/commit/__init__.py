"""Commits: binding what tasks did to ids, and publishing it if nobody was first."""
