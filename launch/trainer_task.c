/* The rows of a task, for the training loop. */
#include "launch/trainer.h"

#include "data/tokenizer.h"

static void announce(const tt_trainer *trainer, const char *what, const tt_task_rows *rows)
{
    if (trainer->run->world.rank == 0) {
        fprintf(stderr,
                "task, %s: %lld rows in %d file%s; left out %lld without a class; %lld cut to the "
                "sequence length\n",
                what, (long long)rows->rows, rows->count, rows->count > 1 ? "s" : "",
                (long long)rows->unlabelled, (long long)rows->cut);
    }
}

static tt_status read_rows(const tt_trainer *trainer, int64_t phase_number, const char *what,
                           const tt_run_paths *paths, const tt_tokenizer *tokenizer,
                           tt_task_rows *rows, tt_error *error)
{
    const tt_recipe *recipe = &trainer->run->recipe;
    if (paths->count == 0) {
        *rows = (tt_task_rows){.count = 0};
        return TT_OK;
    }
    TT_TRY(tt_task_read(recipe->task.kind, (const char *const *)paths->items, paths->count,
                        tokenizer, (int)recipe->phases[phase_number].sequence_length, rows, error));
    announce(trainer, what, rows);
    return TT_OK;
}

tt_status tt_trainer_read_task(tt_trainer *trainer, int64_t phase_number, const tt_run_paths *train,
                               const tt_run_paths *validation, tt_error *error)
{
    const tt_recipe *recipe = &trainer->run->recipe;
    tt_tokenizer *tokenizer;
    if (recipe->task.kind == TT_TASK_NONE || trainer->task.phase == phase_number + 1) {
        return TT_OK;
    }
    tt_trainer_free_task(trainer);
    TT_TRY(tt_recipe_open_tokenizer(recipe, &tokenizer, error));
    tt_status status =
        read_rows(trainer, phase_number, "training", train, tokenizer, &trainer->task.train, error);
    if (status == TT_OK) {
        status = read_rows(trainer, phase_number, "validation", validation, tokenizer,
                           &trainer->task.validation, error);
    }
    tt_tokenizer_close(&tokenizer);
    TT_TRY(status);
    trainer->task.train_source = tt_task_source(&trainer->task.train);
    trainer->task.validation_source = tt_task_source(&trainer->task.validation);
    trainer->task.phase = phase_number + 1;
    return TT_OK;
}

void tt_trainer_free_task(tt_trainer *trainer)
{
    trainer->task.phase = 0;
    tt_task_free(&trainer->task.train);
    tt_task_free(&trainer->task.validation);
}

const tt_row_source *tt_trainer_train_source(const tt_trainer *trainer)
{
    return trainer->task.phase > 0 ? &trainer->task.train_source : NULL;
}

const tt_row_source *tt_trainer_validation_source(const tt_trainer *trainer)
{
    return trainer->task.phase > 0 ? &trainer->task.validation_source : NULL;
}
