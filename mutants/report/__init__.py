"""What a kill matrix says, for people: one HTML file, Markdown for a pull request, and Stryker's JSON.

`facts` reads the matrix once, `command` writes the files; nothing here runs a kernel.
"""
