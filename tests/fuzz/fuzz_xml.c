/* libFuzzer target: any bytes as a corpus file, plain or bzip2; the first byte selects the format.
 *     fuzz_xml -max_len=65536 CORPUS_FOLDER */
#include "data/corpus.h"
#include "fuzz/fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    const char *paths[] = {fuzz_file(data + 1, size - 1)};
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
