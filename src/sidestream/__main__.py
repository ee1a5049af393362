from sidestream.cli import main

main()
