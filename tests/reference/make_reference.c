/* Writes the project's own reference files: make_reference tests/reference/data */
#include "tests/reference/own_reference.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    tt_error error;
    if (argc != 2) {
        fprintf(stderr, "usage: make_reference FOLDER\n");
        return 2;
    }
    if (tt_own_reference_write(argv[1], &error) != TT_OK) {
        fprintf(stderr, "make_reference: %s\n", error.message);
        return 1;
    }
    return 0;
}
