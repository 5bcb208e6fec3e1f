"""The management listener: HTTP, paths, logins, and the files of the page."""
