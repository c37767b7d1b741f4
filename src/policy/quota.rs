//! Quota arithmetic. (Written with the Redis store.)
