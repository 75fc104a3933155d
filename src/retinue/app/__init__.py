"""The one assembly: builds each part of the server, starts and stops it."""
