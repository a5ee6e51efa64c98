/* libFuzzer target: any bytes as a corpus file, plain or bzip2; the first byte selects the format.
 *     fuzz_xml -max_len=65536 CORPUS_FOLDER */
#include "data/corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char path[256];
static int descriptor = -1;

static void remove_file(void)
{
    unlink(path);
}

static void create_file(void)
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/ttrain_fuzz_XXXXXX", folder != NULL ? folder : "/tmp");
    descriptor = mkstemp(path);
    if (descriptor < 0) {
        perror(path);
        exit(1);
    }
    atexit(remove_file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    if (descriptor < 0) {
        create_file();
    }
    if (ftruncate(descriptor, 0) != 0 ||
        pwrite(descriptor, data + 1, size - 1, 0) != (ssize_t)(size - 1)) {
        perror(path);
        exit(1);
    }
    const char *paths[] = {path};
    const tt_corpus_options options = {
        .format = (tt_corpus_format)(data[0] % 5), .paths = paths, .path_count = 1};
    tt_corpus *corpus = NULL;
    tt_error error;
    const tt_document *document = NULL;
    tt_status status = tt_corpus_open(&options, &corpus, &error);
    do {
        status = status == TT_OK ? tt_corpus_next(corpus, &document, &error) : status;
    } while (status == TT_OK && document != NULL);
    tt_corpus_close(&corpus);
    return 0;
}
