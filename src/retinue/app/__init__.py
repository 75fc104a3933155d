"""The one assembly: builds, starts and stops each part of the server."""
