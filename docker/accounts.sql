-- The account of docker/production-local.yaml in the MariaDB images, made with the data directory. Its password is there and here: change both.
SET SESSION sql_log_bin = 0;
CREATE USER 'cellfeed'@'%' IDENTIFIED BY 'change-me';
GRANT ALL PRIVILEGES ON *.* TO 'cellfeed'@'%' WITH GRANT OPTION;
