# The build writes build_info.py.
VERSION: str
COMPILER: str
BUILD_TYPE: str
