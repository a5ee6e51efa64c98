# Writes HEADER with the revision of the source in SOURCE_DIR, and leaves it alone when it is up to date, so
# that only a new revision compiles anything anew.
find_package(Git QUIET)
set(revision "unknown")
if(GIT_FOUND)
    execute_process(
        COMMAND ${GIT_EXECUTABLE} -C ${SOURCE_DIR} describe --always --dirty --abbrev=12
        OUTPUT_VARIABLE described
        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
        RESULT_VARIABLE failed)
    if(NOT failed)
        set(revision ${described})
    endif()
endif()
set(content "#define TT_REVISION \"${revision}\"\n")
set(present "")
if(EXISTS ${HEADER})
    file(READ ${HEADER} present)
endif()
if(NOT present STREQUAL content)
    file(WRITE ${HEADER} "${content}")
endif()
